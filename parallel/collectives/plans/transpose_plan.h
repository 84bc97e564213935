// A distributed transpose that is planned once: all extents are known, so a call asks nothing of
// its peers.
//
//   TransposePlan plan(1, {3, 3, 2}, 2, {4, 4, 4}, "spatial_parallel");
//   at::Tensor rows = plan.to_dim0(columns);   // all of dim 1, a piece of dim 2 -> the reverse
//   at::Tensor again = plan.to_dim1(rows);
//
// Shapes: the columns of rank r have sum(dim0_sizes) along dim0 and dim1_sizes[r] along dim1; its
// rows have dim0_sizes[r] and sum(dim1_sizes). All other extents are equal on all ranks. Results
// are contiguous, in new memory. Dtypes: all that the backend moves.
//
// Backward: the transpose back, of any order. The asynchronous forms have it too
// (async_tensor.h). A backward pass runs on all ranks of the group or on none: see tie.h.
//
// Threads: any, also one plan on several; all ranks of the group make its calls in the same order.
// Errors: from the constructor those of GroupArgument, and c10::ValueError for invalid sizes or
// dims, on this rank; from calls, on every rank that called: a tensor that does not fit,
// ranks whose plans differ (parallel/base/collective_errors.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/collectives/plans/planned_collective.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

class TransposePlan {
 public:
  // Dims count from the front. `also_agreed`: words that the ranks compare with all the rest, and
  // that errors tell: what the transpose is for.
  TransposePlan(IntArgument dim0, const std::vector<int64_t>& dim0_sizes, IntArgument dim1,
                const std::vector<int64_t>& dim1_sizes, const GroupArgument& group = {},
                const std::string& also_agreed = {});

  at::Tensor to_dim0(const at::Tensor& tensor) const;
  at::Tensor to_dim1(const at::Tensor& tensor) const;
  AsyncTensor to_dim0_async(const at::Tensor& tensor) const;
  AsyncTensor to_dim1_async(const at::Tensor& tensor) const;
  // In place of a call that this rank cannot make: raises `problem` here and on the other ranks.
  [[noreturn]] void refuse(const std::string& problem) const { plan_.refuse(problem); }

  const GroupArgument::Handle& group() const;
  int rank() const;
  int world() const;
  // Bytes that this rank sends to others in one call, per element of all other dimensions.
  int64_t bytes_sent(IntArgument element_size) const;

 private:
  PlannedCollective plan_;  // forward: to dim0
};

// The ranks' extents, by rank, told by all to all. Raises `problem` (empty: none) of any rank on
// every rank. A device of the group's backend is taken.
std::vector<int64_t> gather_extents(IntArgument extent, const std::string& problem,
                                    const GroupArgument& group, const at::Tensor& on_device_of);

}  // namespace meshrun
