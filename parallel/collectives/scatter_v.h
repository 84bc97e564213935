// Slice r along `dim` of rank src's tensor to rank r.
//
//   src 0: [a a b b b]    ->    rank 0: [a a]    rank 1: [b b b]
//
// Shapes: at `src` `tensor` has sum(sizes) along dim; elsewhere it is a template of the dtype, the
// number of dimensions and the extents beside dim, whose values and extent along dim are not looked
// at (an empty tensor will do). The result has sizes[rank] along dim. `sizes` absent: equal slices,
// whose number must divide src's extent; one small message more, which waits, tells the other ranks
// how large they are. `src` is a rank of the group.
//
// Backward: the ranks' cotangents are gathered at `src` (gather_v); elsewhere the gradient is zeros
// of the template's shape. Differentiable again. Whether `tensor` requires a gradient must agree on
// all ranks: the template's too.
//
// The rest (agreement of the ranks, threads, errors) is as for all_gather_v.
// Corresponds to physicsnemo.distributed.autograd.scatter_v, whose gradient off `src` is
// uninitialised memory.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/collectives/async_tensor.h"
#include "parallel/collectives/group_argument.h"
#include "parallel/collectives/sizes.h"

namespace meshrun {

at::Tensor scatter_v(const at::Tensor& tensor, const Sizes& sizes = {}, int64_t dim = 0,
                     int64_t src = 0, const GroupArgument& group = {});
AsyncTensor scatter_v_async(const at::Tensor& tensor, const Sizes& sizes = {}, int64_t dim = 0,
                            int64_t src = 0, const GroupArgument& group = {});

struct ScatterVAutograd;  // autograd_functions.h

}  // namespace meshrun
