// Sends slice r of this rank's tensor to rank r; what rank r sends becomes slice r of the result.
// The two sides may be cut along different dimensions: that is a distributed transpose.
//
// Shapes: `tensor` has sum(input_sizes) along input_dim.
//   output_dim == input_dim   the result has sum(output_sizes) along it, all else as `tensor`;
//                             output_sizes[r] here is input_sizes[this rank] on rank r
//   else                      `tensor` has output_sizes[rank] along output_dim; the result has
//                             input_sizes[rank] along input_dim, sum(output_sizes) along output_dim
// One allocation, written in place. Dtypes: all that the backend moves.
//
// Backward: the same call with the two sides exchanged. Differentiable again.
//
// Sizes may differ between ranks, but both ends of a message must give the same size. Where the
// ranks compare them, a wrong size is the same error on all ranks before data moves:
//   ucx    in the call's header
//   Gloo   by an all-gather before the call, which also waits in the asynchronous form
//   NCCL   only with MESHRUN_CHECK_COLLECTIVES=1, in a group that has ucx for CPU tensors
// With MESHRUN_CHECK_COLLECTIVES=0 no backend compares. All else (what must agree, threads, errors)
// is as for all_gather_v.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "parallel/base/arguments.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor all_to_all_v(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                        at::IntArrayRef output_sizes, IntArgument input_dim = 0,
                        IntArgument output_dim = 0, const GroupArgument& group = {});
AsyncTensor all_to_all_v_async(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                               at::IntArrayRef output_sizes, IntArgument input_dim = 0,
                               IntArgument output_dim = 0, const GroupArgument& group = {});

}  // namespace meshrun
