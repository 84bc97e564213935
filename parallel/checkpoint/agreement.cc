#include "parallel/checkpoint/agreement.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>
#include <limits>
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

std::vector<int64_t> least(c10d::ProcessGroup& group, c10::Device device,
                           const std::vector<int64_t>& own) {
  std::vector<at::Tensor> values = {at::tensor(own, at::kLong).to(device)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MIN;
  group.allreduce(values, options)->wait();
  const at::Tensor seen = values[0].cpu();
  const auto* const begin = seen.const_data_ptr<int64_t>();
  return {begin, begin + seen.numel()};
}

std::vector<int64_t> number_by_rank(c10d::ProcessGroup& group, c10::Device device, int64_t own) {
  std::vector<int64_t> numbers(static_cast<size_t>(group.getSize()),
                               std::numeric_limits<int64_t>::max());
  numbers[static_cast<size_t>(group.getRank())] = own;
  return least(group, device, numbers);
}

std::string common_problem(c10d::ProcessGroup& group, c10::Device device,
                           const std::string& problem) {
  const int64_t none = group.getSize();
  const int64_t rank = least(group, device, {problem.empty() ? none : group.getRank()})[0];
  return rank == none ? "" : broadcast_text(group, device, problem, static_cast<int>(rank));
}

std::vector<bool> are_equal(c10d::ProcessGroup& group, c10::Device device,
                            const std::vector<int64_t>& own) {
  // The least and, inverted, the greatest.
  std::vector<int64_t> both = own;
  for (const int64_t number : own) both.push_back(~number);
  const std::vector<int64_t> ends = least(group, device, both);
  std::vector<bool> equal;
  for (size_t i = 0; i < own.size(); ++i) equal.push_back(ends[i] == ~ends[own.size() + i]);
  return equal;
}

std::vector<std::string> gather_texts(c10d::ProcessGroup& group, c10::Device device,
                                      const std::string& text) {
  const auto gathered = [&](const at::Tensor& own) {
    std::vector<at::Tensor> inputs = {own.to(device)};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < group.getSize(); ++rank) {
      outputs[0].push_back(at::empty_like(inputs[0]));
    }
    group.allgather(outputs, inputs)->wait();
    for (at::Tensor& output : outputs[0]) output = output.cpu();
    return outputs[0];
  };
  std::vector<int64_t> lengths;
  for (const at::Tensor& length :
       gathered(at::full({1}, static_cast<int64_t>(text.size()), at::kLong))) {
    lengths.push_back(length.item<int64_t>());
  }
  // Length of the longest text, but at least 1.
  const int64_t longest = std::max<int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  const at::Tensor own = at::zeros({longest}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), text.data(), text.size());
  std::vector<std::string> texts;
  for (const at::Tensor& bytes : gathered(own)) {
    texts.emplace_back(static_cast<const char*>(bytes.const_data_ptr()),
                       static_cast<size_t>(lengths[texts.size()]));
  }
  return texts;
}

}  // namespace meshrun
