// The indexed all-to-all and its adjoint on tensors, without gradients, and what a plan holds for
// them. Internal to parallel/collectives.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "core/mutex.h"
#include "parallel/collectives/call/launch.h"
#include "parallel/collectives/plans/device_lists.h"
#include "parallel/collectives/plans/indexed_all_to_all_plan.h"
#include "parallel/collectives/plans/indexed_plan.h"

namespace meshrun {

struct IndexedAllToAllPlan::State {
  GroupArgument::Handle group;
  int rank = 0;
  int world = 1;
  int64_t extent = 0;
  IndexedPlan plan;
  // Slices that travel, by rank: one's own do not, and stand in `received` alone.
  Extents sent, received;
  Extents sent_begin;  // slices that are sent to lower ranks
  int64_t num_received = 0;
  int64_t own_begin = 0;  // where one's own are in the result

  using Lists = IndexedLists;
  // For what is queued on the device's current stream next. The first call copies the lists there,
  // without a wait of the host.
  const Lists& lists_on(c10::Device device) const;
  // ", by a table of sizes with digest 00c0ffee00c0ffee (slices that each rank sends in all: [3,
  // 1]), sending [1, 2] and receiving [1, 1]". One's own sizes may be alike where the tables
  // differ, and long texts are cut: the digest comes first.
  std::string words() const;

  Lists host;  // memory of `plan`
  mutable Mutex mu;
  mutable std::deque<DeviceLists> copies MESHRUN_GUARDED_BY(mu);
};

using IndexedState = IndexedAllToAllPlan::State;

// What is wrong with calling `state`'s plan, forward or backward, with this tensor; makes dim
// count from the front.
std::string check_indexed(const at::Tensor& tensor, const IndexedState& state, bool reversed,
                          int64_t& dim);

at::Tensor indexed_all_to_all(const at::Tensor& tensor,
                              const std::shared_ptr<const IndexedState>& state, bool use_fp32,
                              int64_t dim, const Launch& how);
// Waits: there is work to do with what arrives.
at::Tensor indexed_all_to_all_reverse(const at::Tensor& tensor,
                                      const std::shared_ptr<const IndexedState>& state,
                                      bool use_fp32, int64_t dim, bool requires_grad);

}  // namespace meshrun
