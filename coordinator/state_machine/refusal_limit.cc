#include "coordinator/state_machine/refusal_limit.h"

#include <algorithm>
#include <utility>

namespace meshrun::coordinator {

std::optional<uint64_t> RefusalLimit::Admit(const std::string& name, SteadyNanos now) {
  const auto fill = [this, now](Caller& caller) {
    const double seconds = std::chrono::duration<double>(now - caller.as_of).count();
    caller.left = std::min(caller.left + std::max(seconds, 0.0) * per_second_, at_once_);
    caller.as_of = now;
  };
  if (callers_.size() >= kMostCallers && !callers_.contains(name)) {
    for (auto& [unused, caller] : callers_) fill(caller);
    std::erase_if(callers_, [this](const auto& entry) {
      return entry.second.left >= at_once_ && entry.second.not_recorded == 0;
    });
    if (callers_.size() >= kMostCallers) callers_.clear();
  }
  const auto [found, is_new] = callers_.try_emplace(name);
  Caller& caller = found->second;
  if (is_new) caller = {at_once_, now};
  fill(caller);
  if (caller.left < 1) {
    ++caller.not_recorded;
    return std::nullopt;
  }
  caller.left -= 1;
  return std::exchange(caller.not_recorded, 0);
}

}  // namespace meshrun::coordinator
