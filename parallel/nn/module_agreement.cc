#include "parallel/nn/module_agreement.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <sstream>
#include <utility>
#include <vector>

#include "core/fingerprint.h"

namespace meshrun::detail {
namespace {

// Starts a message that is a rank's problem and not a description; no parameter's name contains it.
constexpr char kProblem = '\x01';

// The same tensor of every rank, in rank order, on the CPU.
std::vector<at::Tensor> all_gather(c10d::ProcessGroup& group, c10::Device device,
                                   const at::Tensor& tensor) {
  std::vector<at::Tensor> input = {tensor.to(device)};
  std::vector<std::vector<at::Tensor>> output(1);
  for (int rank = 0; rank < group.getSize(); ++rank) {
    output[0].push_back(at::empty_like(input[0]));
  }
  group.allgather(output, input)->wait();
  for (at::Tensor& gathered : output[0]) gathered = gathered.cpu();
  return std::move(output[0]);
}

std::vector<std::string> all_gather_texts(c10d::ProcessGroup& group, c10::Device device,
                                          const std::string& text, int64_t longest) {
  at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  std::vector<std::string> texts;
  for (const at::Tensor& gathered : all_gather(group, device, bytes)) {
    const std::string padded(static_cast<const char*>(gathered.const_data_ptr()), longest);
    texts.push_back(padded.substr(0, padded.find('\0')));
  }
  return texts;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// First difference between the ranks' texts. Each text has one line of options, then one line per
// tensor.
std::string first_difference(const std::vector<std::string>& texts) {
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty() && texts[rank][0] == kProblem) {
      return "on rank " + std::to_string(rank) + ": " + texts[rank].substr(1);
    }
  }
  const std::vector<std::string> ours = lines_of(texts[0]);
  const auto line = [](const std::vector<std::string>& lines, size_t i) {
    return i < lines.size() ? lines[i] : std::string("nothing more");
  };
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const std::vector<std::string> theirs = lines_of(texts[rank]);
    if (ours.front() != theirs.front()) {
      return "the options differ between ranks: " + ours.front() + " on rank 0, but " +
             theirs.front() + " on rank " + std::to_string(rank);
    }
    size_t i = 1;
    while (i < ours.size() && line(ours, i) == line(theirs, i)) ++i;
    return "the module differs between ranks: rank 0 has " + std::to_string(ours.size() - 1) +
           " parameters and buffers, rank " + std::to_string(rank) + " has " +
           std::to_string(theirs.size() - 1) + "; the first that differs is \"" + line(ours, i) +
           "\" on rank 0 and \"" + line(theirs, i) + "\" on rank " + std::to_string(rank);
  }
  return "the modules' fingerprints differ between ranks";
}

}  // namespace

std::string describe(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::ostringstream text;
  for (const auto& item : tensors) {
    const at::Tensor& tensor = item.value();
    text << item.key() << ' ' << tensor.scalar_type() << ' ' << tensor.sizes()
         << (tensor.requires_grad() ? "" : " not trained") << '\n';
  }
  return text.str();
}

std::string find_difference(c10d::ProcessGroup& group, c10::Device device,
                            const std::string& options, const std::string& description,
                            const std::string& problem) {
  const std::string text = problem.empty() ? options + '\n' + description : kProblem + problem;
  const at::Tensor own = at::empty({2}, at::kLong);
  own.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(Fingerprint(text));
  own.mutable_data_ptr<int64_t>()[1] = static_cast<int64_t>(text.size());
  const std::vector<at::Tensor> all = all_gather(group, device, own);
  int64_t longest = 1;
  bool agree = problem.empty();
  for (const at::Tensor& other : all) {
    const int64_t* values = other.const_data_ptr<int64_t>();
    longest = std::max(longest, values[1]);
    agree = agree && values[0] == static_cast<int64_t>(Fingerprint(text));
  }
  if (agree) return "";
  return first_difference(all_gather_texts(group, device, text, longest));
}

}  // namespace meshrun::detail
