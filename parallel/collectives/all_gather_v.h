// Every rank's piece on every rank, one after another along `dim`, in rank order.
//
//   rank 0: [a a]      rank 1: [b b b]      ->      both: [a a b b b]
//
// Shapes: `tensor` is this rank's piece, sizes[rank] along dim; all other extents are equal on all
// ranks. The result has sum(sizes) along dim. It is one allocation, written in place, and never
// shares memory with `tensor`, not even in a group of one rank. Dtypes: all that the backend moves,
// equal on all ranks. `sizes`: see sizes.h; absent: all pieces are as large as this one. `dim` may
// be negative. Pieces may be empty.
//
// Backward: rank r's gradient is the sum of all ranks' cotangents' slice r (reduce_scatter_v), in
// rank order; on several hosts of several ranks a backend may add each host's first, and NCCL may
// add equal pieces in its own order (docs/decisions/0015). MESHRUN_REDUCTION_ORDER=rank gives rank
// order everywhere. float16 and bfloat16 are added in float32 unless `use_fp32` is false; the
// forward call only compares that flag. Differentiable again. A backward pass runs on all ranks of
// the group or on none: a rank whose loss does not use the result calls tie() (tie.h).
//
// All ranks must agree on sizes, dim, dtype, extents, use_fp32, and on whether `tensor` requires a
// gradient.
//
// Threads: any; all ranks of a group make its calls in the same order. Errors: those of
// GroupArgument, on this rank; all others, wrong arguments included, on every rank that called,
// from the Work (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.distributed.autograd.all_gather_v.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor all_gather_v(const at::Tensor& tensor, const Sizes& sizes = {}, IntArgument dim = 0,
                        BoolArgument use_fp32 = true, const GroupArgument& group = {});
AsyncTensor all_gather_v_async(const at::Tensor& tensor, const Sizes& sizes = {},
                               IntArgument dim = 0, BoolArgument use_fp32 = true,
                               const GroupArgument& group = {});

struct AllGatherVAutograd;  // autograd_functions.h

}  // namespace meshrun
