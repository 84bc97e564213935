// Every rank's piece on every rank, one after another along `dim`, in rank order.
//
//   rank 0: [a a]      rank 1: [b b b]      ->      both: [a a b b b]
//
// Shapes: `tensor` is this rank's piece, sizes[rank] along dim; all other extents are equal on all
// ranks. The result has sum(sizes) along dim; it is one allocation, written in place, and never
// shares memory with `tensor`, also in a group of one rank. Dtypes: all that the backend moves,
// equal on all ranks. `sizes`: sizes.h; absent: all pieces are as large as this one. `dim` may be
// negative. Pieces may be empty.
//
// Backward: rank r's gradient is the sum over all ranks of their cotangents' slice r, added in rank
// order (reduce_scatter_v); float16 and bfloat16 in float32 unless `use_fp32` is false, which the
// forward call only compares. Differentiable again. A backward pass runs on all ranks of the group
// or on none: tie() (tie.h) keeps the node of a rank whose loss does not use the result.
//
// Whether `tensor` requires a gradient must be the same on all ranks, as well as sizes, dim, dtype,
// extents and use_fp32.
//
// Threads: any; the calls of one group in the same order on all its ranks. Errors: those of
// GroupArgument; all else, wrong arguments too, on every rank that called, from the Work
// (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.distributed.autograd.all_gather_v.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/collectives/async_tensor.h"
#include "parallel/collectives/group_argument.h"
#include "parallel/collectives/sizes.h"

namespace meshrun {

at::Tensor all_gather_v(const at::Tensor& tensor, const Sizes& sizes = {}, int64_t dim = 0,
                        bool use_fp32 = true, const GroupArgument& group = {});
AsyncTensor all_gather_v_async(const at::Tensor& tensor, const Sizes& sizes = {}, int64_t dim = 0,
                               bool use_fp32 = true, const GroupArgument& group = {});

struct AllGatherVAutograd;  // autograd_functions.h

}  // namespace meshrun
