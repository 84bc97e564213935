#include "parallel/collectives/plans/indexed_all_to_all_plan.h"

#include <numeric>
#include <span>
#include <utility>

#include "ATen/ops/from_blob.h"
#include "fmt/format.h"
#include "parallel/collectives/plans/indexed_exchange.h"

namespace meshrun {
namespace {

std::string check_tensors(const std::vector<at::Tensor>& indices) {
  for (size_t j = 0; j < indices.size(); ++j) {
    const std::string name = "indices[" + std::to_string(j) + "]";
    const at::Tensor& index = indices[j];
    if (!index.defined()) return name + " is undefined";
    if (index.scalar_type() != at::kLong && index.scalar_type() != at::kInt) {
      return name + " is of dtype " + c10::toString(index.scalar_type()) +
             "; int64 or int32 is expected";
    }
    if (index.dim() != 1) {
      return name + " is of shape " + to_words(index.sizes()) + "; one dimension is expected";
    }
  }
  return {};
}

at::Tensor tensor_of(std::vector<int64_t>& list) {
  return at::from_blob(list.data(), {static_cast<int64_t>(list.size())}, at::kLong);
}

}  // namespace

IndexedAllToAllPlan::IndexedAllToAllPlan(const std::vector<at::Tensor>& indices,
                                         const std::vector<std::vector<int64_t>>& sizes,
                                         IntArgument extent, const GroupArgument& group) {
  const auto state = std::make_shared<State>();
  state_ = state;
  state->group = group.get();
  state->rank = state->group->getRank();
  state->world = state->group->getSize();
  state->extent = extent;
  IndexedPlan& plan = state->plan;
  plan.problem = check_tensors(indices);
  if (extent < 0) {
    plan.problem = "extent is " + std::to_string(extent) + "; a number of slices is expected";
  }
  if (!plan.problem.empty()) return;

  std::vector<at::Tensor> on_host;
  std::vector<std::span<const int64_t>> lists;
  for (const at::Tensor& index : indices) {
    on_host.push_back(index.to(at::Device(at::kCPU), at::kLong).contiguous());
    lists.emplace_back(on_host.back().const_data_ptr<int64_t>(),
                       static_cast<size_t>(on_host.back().numel()));
  }
  plan = plan_indexed_exchange(lists, sizes, extent, state->rank, state->world);
  if (!plan.problem.empty()) return;

  state->host = {tensor_of(plan.remote), tensor_of(plan.own), tensor_of(plan.offsets),
                 tensor_of(plan.positions)};
  const auto own = static_cast<size_t>(state->rank);
  const auto& received = plan.receive_sizes;
  state->num_received = std::accumulate(received.begin(), received.end(), int64_t{0});
  state->own_begin = std::accumulate(received.begin(), received.begin() + state->rank, int64_t{0});
  state->sent.assign(plan.send_sizes.begin(), plan.send_sizes.end());
  state->sent[own] = 0;
  state->received.assign(received.begin(), received.end());
  int64_t begin = 0;
  for (const int64_t slices : state->sent) {
    state->sent_begin.push_back(begin);
    begin += slices;
  }
}

const std::string& IndexedAllToAllPlan::problem() const { return state_->plan.problem; }
const GroupArgument::Handle& IndexedAllToAllPlan::group() const { return state_->group; }
int64_t IndexedAllToAllPlan::extent() const { return state_->extent; }
int64_t IndexedAllToAllPlan::num_received() const { return state_->num_received; }

const IndexedState::Lists& IndexedState::lists_on(c10::Device device) const {
  if (device.is_cpu()) return host;
  const MutexLock lock(mu);
  for (DeviceLists& copy : copies) {
    if (copy.device() == device) return copy.on_current_stream();
  }
  return copies.emplace_back(host, device).on_current_stream();
}

std::string IndexedState::words() const {
  return fmt::format(
      " (indexed_all_to_all_v), by a table of sizes with digest {:016x} (slices that each rank "
      "sends in all: {}), "
      "sending {} and receiving {}",
      plan.table_digest, to_words(plan.table_rows), to_words(plan.send_sizes),
      to_words(plan.receive_sizes));
}

}  // namespace meshrun
