#include "coordinator/services/open_streams.h"

#include <fmt/format.h>

#include "core/error_detail.h"

namespace meshrun::coordinator {

absl::StatusOr<OpenStreams::Place> OpenStreams::Open(const std::string& user) {
  MutexLock lock(mu_);
  size_t& open = by_user_[user];
  if (open >= most_) {
    return TryAgainLater(
        fmt::format("{} has {} {} open, and no more are served", user, open, what_),
        std::chrono::seconds(1));
  }
  ++open;
  return Place(this, user);
}

void OpenStreams::Close(const std::string& user) {
  MutexLock lock(mu_);
  const auto found = by_user_.find(user);
  if (--found->second == 0) by_user_.erase(found);
}

}  // namespace meshrun::coordinator
