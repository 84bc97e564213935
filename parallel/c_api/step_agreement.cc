#include "parallel/c_api/step_agreement.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstdint>

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

std::vector<double> add_up(DistributedManager& manager, const std::vector<double>& own) {
  std::vector<at::Tensor> message = {at::tensor(own, at::kDouble).to(manager.device())};
  manager.world()->allreduce(message)->wait();
  const at::Tensor sums = message[0].cpu();
  const auto* const begin = sums.const_data_ptr<double>();
  return {begin, begin + sums.numel()};
}

}  // namespace

std::vector<LossTerms> agree_on_step(DistributedManager& manager, const std::string& step,
                                     const std::vector<LossTerms>& own,
                                     const std::optional<CallError>& failure) {
  if (manager.world_size() == 1) {
    if (failure) throw *failure;
    return own;
  }
  const LossTerms first = own.empty() ? LossTerms() : own.front();
  const std::string text = fmt::format("{}, outputs with a loss: {}", step, own.size());
  std::vector<double> message = {failure ? 1.0 : 0.0, first.sum, first.count};
  const auto head = static_cast<std::ptrdiff_t>(message.size());
  append_fingerprint(text, message);
  const std::vector<double> sums = add_up(manager, message);
  if (sums[0] > 0) raise_together(failure ? &*failure : nullptr);
  if (!are_equal(sums.data() + head, manager.world_size())) {
    require_equal(manager, "the steps", text);
  }
  std::vector<LossTerms> total(own.size());
  if (!own.empty()) total.front() = {sums[1], sums[2]};
  if (own.size() < 2) return total;
  message.clear();
  for (const LossTerms& terms : own) message.insert(message.end(), {terms.sum, terms.count});
  const std::vector<double> all = add_up(manager, message);
  for (size_t i = 0; i < own.size(); ++i) total[i] = {all[2 * i], all[2 * i + 1]};
  return total;
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
