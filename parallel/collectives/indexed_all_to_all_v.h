// Sends slices along `dim`, chosen by index, to each rank: a distributed graph's halo exchange.
//
//   sizes = {{1, 2}, {1, 0}}
//   rank 0: x = [a b c], indices = {[0], [2 0]}    ->    rank 0: [a d]
//   rank 1: x = [d e],   indices = {[0], []}       ->    rank 1: [c a]
//
// Shapes: `tensor` (.., extent, ..); the result has sum over i of sizes[i][rank] along dim, in the
// order of the sending ranks; all other extents are equal on all ranks. `indices`, `sizes`:
// indexed_all_to_all_plan.h. Dtypes: all that the backend moves.
//
// Slices for other ranks are gathered once and received in place; a rank's own slices go straight
// into the result. At dim 0 no byte is copied twice.
//
// Backward: cotangents travel back and are added per slice in the order of the send list, this
// rank's own included: a segmented sum without atomics, so the same bits in every run. float16 and
// bfloat16 are added in float32 and rounded once, unless `use_fp32` is false. Differentiable again.
//
// The form with a plan does not check and invert the indices again, which costs about as much as
// the exchange itself. Ranks whose tables differ get CollectiveMismatchError. All else (what must
// agree, threads, errors) is as for all_gather_v.
//
// Corresponds to physicsnemo.distributed.autograd.indexed_all_to_all_v, which ignores `dim`.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/collectives/plans/indexed_all_to_all_plan.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor indexed_all_to_all_v(const at::Tensor& tensor, const std::vector<at::Tensor>& indices,
                                const std::vector<std::vector<int64_t>>& sizes,
                                BoolArgument use_fp32 = true, IntArgument dim = 0,
                                const GroupArgument& group = {});
at::Tensor indexed_all_to_all_v(const at::Tensor& tensor, const IndexedAllToAllPlan& plan,
                                BoolArgument use_fp32 = true, IntArgument dim = 0);
AsyncTensor indexed_all_to_all_v_async(const at::Tensor& tensor,
                                       const std::vector<at::Tensor>& indices,
                                       const std::vector<std::vector<int64_t>>& sizes,
                                       BoolArgument use_fp32 = true, IntArgument dim = 0,
                                       const GroupArgument& group = {});
AsyncTensor indexed_all_to_all_v_async(const at::Tensor& tensor, const IndexedAllToAllPlan& plan,
                                       BoolArgument use_fp32 = true, IntArgument dim = 0);

struct IndexedAllToAllVAutograd;  // autograd_functions.h

}  // namespace meshrun
