#include "parallel/nn/graph/group_exchange.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

#include "parallel/collectives/all_to_all_v.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun::detail {
namespace {

c10::Device device_for_lists(const c10d::ProcessGroup& group) {
  const auto types = group.getDeviceTypes();
  for (const c10::Device& device : types) {
    if (device.is_cpu()) return device;
  }
  return types.empty() ? c10::Device(c10::kCPU) : types.front();
}

}  // namespace

GroupExchange::GroupExchange(GroupArgument::Handle group)
    : group_(std::move(group)), device_(device_for_lists(*group_)) {}

int GroupExchange::rank() const { return group_->getRank(); }
int GroupExchange::world() const { return group_->getSize(); }

RankLists GroupExchange::all_to_all(const RankLists& lists) {
  const at::NoGradGuard no_grad;
  const auto to_device = [&](const std::vector<int64_t>& values) {
    return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device_);
  };
  const auto to_host = [](const at::Tensor& tensor) {
    const at::Tensor host = tensor.cpu();
    const auto* data = host.const_data_ptr<int64_t>();
    return std::vector<int64_t>(data, data + host.numel());
  };
  RankLists received;
  const std::vector<int64_t> ones(lists.sizes.size(), 1);
  received.sizes =
      to_host(all_to_all_v(to_device(lists.sizes), ones, ones, 0, 0, GroupArgument(group_)));
  received.values = to_host(all_to_all_v(to_device(lists.values), lists.sizes, received.sizes, 0, 0,
                                         GroupArgument(group_)));
  return received;
}

}  // namespace meshrun::detail
