#include "coordinator/api/local_call.h"

#include <algorithm>

namespace meshrun::coordinator {
namespace {

constexpr std::chrono::milliseconds kLook(50);

}  // namespace

absl::Status AwaitPatiently(const Patience& patience, const char* late,
                            const std::function<bool(Deadline step)>& wait) {
  while (!wait(std::min(patience.until, std::chrono::steady_clock::now() + kLook))) {
    if (patience.gone != nullptr && patience.gone()) {
      return absl::UnavailableError("this coordinator stops, or leads no more: ask again");
    }
    if (std::chrono::steady_clock::now() >= patience.until) {
      return absl::DeadlineExceededError(late);
    }
  }
  return absl::OkStatus();
}

}  // namespace meshrun::coordinator
