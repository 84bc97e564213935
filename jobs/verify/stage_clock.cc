#include "jobs/verify/stage_clock.h"

#include <algorithm>
#include <utility>

namespace meshrun::verify {

std::chrono::seconds stage_limit(std::chrono::seconds most, std::chrono::duration<double> passed) {
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(kAllStages - passed);
  return std::clamp(left, std::chrono::seconds(1), most);
}

StageClock::StageClock(OnLate on_late)
    : on_late_(std::move(on_late)), thread_([this] { watch(); }) {}

StageClock::~StageClock() {
  {
    const MutexLock lock(mutex_);
    is_over_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void StageClock::begin(const std::string& stage, std::chrono::seconds limit) {
  {
    const MutexLock lock(mutex_);
    stage_ = stage;
    limit_ = limit;
    until_ = std::chrono::steady_clock::now() + limit;
  }
  changed_.NotifyAll();
}

void StageClock::end() {
  const MutexLock lock(mutex_);
  until_.reset();
  while (is_late_) changed_.Wait(mutex_);
}

std::string StageClock::stage() const {
  const MutexLock lock(mutex_);
  return stage_;
}

void StageClock::watch() {
  std::string stage;
  std::chrono::seconds limit{0};
  {
    const MutexLock lock(mutex_);
    while (!is_over_ && !(until_ && std::chrono::steady_clock::now() >= *until_)) {
      if (until_) {
        changed_.WaitUntil(mutex_, *until_);
      } else {
        changed_.Wait(mutex_);
      }
    }
    if (is_over_) return;
    is_late_ = true;
    stage = stage_;
    limit = limit_;
  }
  on_late_(stage, limit);
  {
    const MutexLock lock(mutex_);
    is_late_ = false;
  }
  changed_.NotifyAll();
}

}  // namespace meshrun::verify
