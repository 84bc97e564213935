#include "parallel/checkpoint/agreement.h"

#include <ATen/Functions.h>

#include <cstring>
#include <vector>

namespace meshrun {

std::string broadcast_text(c10d::ProcessGroup& group, c10::Device device, const std::string& text,
                           int root) {
  c10d::BroadcastOptions options;
  options.rootRank = root;
  std::vector<at::Tensor> length = {
      at::full({1}, static_cast<int64_t>(text.size()), at::kLong).to(device)};
  group.broadcast(length, options)->wait();
  const auto size = length[0].item<int64_t>();
  if (size == 0) return "";
  at::Tensor bytes = at::empty({size}, at::kByte);
  if (group.getRank() == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  std::vector<at::Tensor> content = {bytes.to(device)};
  group.broadcast(content, options)->wait();
  bytes = content[0].cpu();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(size)};
}

std::string common_problem(c10d::ProcessGroup& group, c10::Device device,
                           const std::string& problem) {
  const int64_t none = group.getSize();
  std::vector<at::Tensor> first = {
      at::full({1}, problem.empty() ? none : group.getRank(), at::kLong).to(device)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MIN;
  group.allreduce(first, options)->wait();
  const auto rank = first[0].item<int64_t>();
  return rank == none ? "" : broadcast_text(group, device, problem, static_cast<int>(rank));
}

}  // namespace meshrun
