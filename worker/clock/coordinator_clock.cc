#include "worker/clock/coordinator_clock.h"

#include <algorithm>

namespace meshrun::worker {

void CoordinatorClock::Add(std::chrono::nanoseconds sent, std::chrono::nanoseconds received,
                           std::chrono::nanoseconds answered) {
  const std::chrono::nanoseconds error = (answered - sent) / 2;
  const Comparison now = {received - (sent + error), error};
  // The coordinator's clock stands still while a commit hangs: what was right before is wrong now.
  std::erase_if(samples_, [&now](const Comparison& before) {
    return std::chrono::abs(before.offset - now.offset) > before.error + now.error;
  });
  samples_.push_back(now);
  if (samples_.size() > kSamples) samples_.pop_front();
}

std::optional<CoordinatorClock::Comparison> CoordinatorClock::Best() const {
  const auto best =
      std::min_element(samples_.begin(), samples_.end(),
                       [](const Comparison& a, const Comparison& b) { return a.error < b.error; });
  if (best == samples_.end()) return std::nullopt;
  return *best;
}

}  // namespace meshrun::worker
