#include "parallel/c_api/step_agreement.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/fingerprint.h"
#include "fmt/format.h"
#include "parallel/checkpoint/agreement.h"

namespace meshrun::c_api {
namespace {

// A fingerprint as four numbers of 16 bits, each followed by its square: doubles add them up
// exactly for any number of ranks.
constexpr size_t kParts = 4;

void append_fingerprint(const std::string& text, std::vector<double>& message) {
  const uint64_t fingerprint = Fingerprint(text);
  for (size_t i = 0; i < kParts; ++i) {
    const auto part = static_cast<double>(fingerprint >> (16 * i) & 0xffff);
    message.insert(message.end(), {part, part * part});
  }
}

// Whether all ranks appended the same one. By the inequality of Cauchy and Schwarz, numbers are
// equal if and only if their sum squared is the ranks' number times the sum of their squares. With
// more than 65,536 ranks the products overflow, and equal numbers are still found equal.
bool are_equal(const double* sums, int ranks) {
  for (size_t i = 0; i < kParts; ++i) {
    const auto sum = static_cast<uint64_t>(sums[2 * i]);
    const auto squares = static_cast<uint64_t>(sums[2 * i + 1]);
    if (sum * sum != squares * static_cast<uint64_t>(ranks)) return false;
  }
  return true;
}

}  // namespace

double agree_on_step(DistributedManager& manager, const std::string& step, double own,
                     const std::optional<CallError>& failure) {
  if (manager.world_size() == 1) {
    if (failure) throw *failure;
    return own;
  }
  std::vector<double> message = {failure ? 1.0 : 0.0, own};
  const auto head = message.size();
  append_fingerprint(step, message);
  std::vector<at::Tensor> sums = {at::tensor(message, at::kDouble).to(manager.device())};
  manager.world()->allreduce(sums)->wait();
  const at::Tensor sum = sums[0].cpu();
  const auto* const numbers = sum.const_data_ptr<double>();
  if (numbers[0] > 0) raise_together(failure ? &*failure : nullptr);
  if (!are_equal(numbers + head, manager.world_size())) require_equal(manager, "the steps", step);
  return numbers[1] / manager.world_size();
}

void require_equal(DistributedManager& manager, const char* what, const std::string& text) {
  if (manager.world_size() == 1) return;
  const std::vector<std::string> all = gather_texts(*manager.world(), manager.device(), text);
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const std::string& each) { return each != all.front(); });
  if (other == all.end()) return;
  throw CallError(MESHRUN_INVALID_ARGUMENT,
                  fmt::format("{} differ between ranks: rank 0 has \"{}\", and rank {} \"{}\"",
                              what, all.front(), other - all.begin(), *other));
}

}  // namespace meshrun::c_api
