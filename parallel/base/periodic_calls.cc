#include "parallel/base/periodic_calls.h"

#include <thread>
#include <utility>

namespace meshrun {

void PeriodicCalls::add(const void* member, std::function<void()> call) {
  const MutexLock lock(mu_);
  members_[member] = std::move(call);
  if (!std::exchange(is_running_, true)) std::thread([this] { run(); }).detach();
  has_members_.NotifyOne();
}

void PeriodicCalls::remove(const void* member) {
  const MutexLock lock(mu_);
  members_.erase(member);
}

void PeriodicCalls::run() {
  for (;;) {
    std::this_thread::sleep_for(period_);
    const MutexLock lock(mu_);
    while (members_.empty()) has_members_.Wait(mu_);
    for (const auto& [member, call] : members_) call();
  }
}

}  // namespace meshrun
