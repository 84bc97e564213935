// The adjoint of all_gather_v: rank r gets the sum of all ranks' slice r along `dim`.
//
//   rank 0: [a a b b b]    rank 1: [c c d d d]    ->    rank 0: [a+c a+c]    rank 1: [b+d b+d b+d]
//
// Shapes: `tensor` has sum(sizes) along dim and is of one shape on all ranks; the result has
// sizes[rank]. `sizes` absent: equal slices, whose number must divide the extent. Dtypes: those
// that the backend adds. Sums are taken in rank order; on several hosts of several ranks a backend
// may add each host's first, and NCCL may add equal pieces in its own order (docs/decisions/0015).
// MESHRUN_REDUCTION_ORDER=rank gives rank order everywhere. Every run gives the same bits. float16
// and bfloat16 are added in float32 and rounded once, unless `use_fp32` is false.
//
// Backward: all_gather_v of the cotangents. Differentiable again. All else (what must agree,
// threads, errors) is as for all_gather_v.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor reduce_scatter_v(const at::Tensor& tensor, const Sizes& sizes = {}, IntArgument dim = 0,
                            BoolArgument use_fp32 = true, const GroupArgument& group = {});
AsyncTensor reduce_scatter_v_async(const at::Tensor& tensor, const Sizes& sizes = {},
                                   IntArgument dim = 0, BoolArgument use_fp32 = true,
                                   const GroupArgument& group = {});

struct ReduceScatterVAutograd;  // autograd_functions.h

}  // namespace meshrun
