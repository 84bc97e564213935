// Sends slice r along `dim` of rank src's tensor to rank r.
//
//   src 0: [a a b b b]    ->    rank 0: [a a]    rank 1: [b b b]
//
// Shapes: at `src` `tensor` has sum(sizes) along dim. Elsewhere it is a template: it gives the
// dtype, the number of dimensions and the extents beside dim; its values and its extent along dim
// are ignored (an empty tensor will do). The result has sizes[rank] along dim. `sizes` absent:
// equal slices, whose number must divide src's extent; src then first sends one small message that
// tells the other ranks how large they are, and the call waits for it. `src` is a rank of the
// group.
//
// Backward: the ranks' cotangents are gathered at `src` (gather_v); elsewhere the gradient is zeros
// of the template's shape. Differentiable again. Whether `tensor` requires a gradient must agree on
// all ranks: the template's too.
//
// All else (what must agree, threads, errors) is as for all_gather_v.
// Corresponds to physicsnemo.distributed.autograd.scatter_v, whose gradient off `src` is
// uninitialised memory.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor scatter_v(const at::Tensor& tensor, const Sizes& sizes = {}, IntArgument dim = 0,
                     IntArgument src = 0, const GroupArgument& group = {});
AsyncTensor scatter_v_async(const at::Tensor& tensor, const Sizes& sizes = {}, IntArgument dim = 0,
                            IntArgument src = 0, const GroupArgument& group = {});

struct ScatterVAutograd;  // autograd_functions.h

}  // namespace meshrun
