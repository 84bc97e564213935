// Every rank's piece on rank `dst` alone, one after another along `dim`, in rank order.
//
//   rank 0: [a a]    rank 1: [b b b]    ->    dst 0: [a a b b b]    rank 1: [] (empty)
//
// Shapes: as for all_gather_v; on ranks other than `dst` the result has extent 0 along dim, and no
// memory. `dst` is a rank of the group.
//
// Backward: slice r of dst's cotangent goes to rank r (scatter_v); the other ranks' cotangents have
// no elements. Differentiable again. Every rank's backward pass must reach the node: ranks other
// than `dst`, whose losses rarely use an empty tensor, call tie() (tie.h).
//
// All else (what must agree, `dst` included, threads, errors) is as for all_gather_v.
// Corresponds to physicsnemo.distributed.autograd.gather_v, which returns uninitialised memory of
// the global shape off `dst`.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor gather_v(const at::Tensor& tensor, const Sizes& sizes = {}, IntArgument dim = 0,
                    IntArgument dst = 0, const GroupArgument& group = {});
AsyncTensor gather_v_async(const at::Tensor& tensor, const Sizes& sizes = {}, IntArgument dim = 0,
                           IntArgument dst = 0, const GroupArgument& group = {});

struct GatherVAutograd;  // autograd_functions.h

}  // namespace meshrun
