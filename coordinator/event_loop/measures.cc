// What the loop tells about itself, for metrics.
#include <utility>

#include "coordinator/event_loop/event_loop.h"

namespace meshrun::coordinator {
namespace {

// Whoever asks more often is told the same: the loop has other things to do.
constexpr std::chrono::milliseconds kFresh(100);

}  // namespace

std::shared_ptr<const Measures> EventLoop::Measure(std::chrono::milliseconds wait) {
  const auto now = std::chrono::steady_clock::now();
  const auto until = now + wait;
  MutexLock lock(mu_);
  if (measures_ != nullptr && now - measured_at_ < kFresh) return measures_;
  const uint64_t wanted = ++measures_wanted_;
  poked_ = true;
  arrived_.NotifyAll();
  while (!stopping_ && measured_ < wanted && measured_now_.WaitUntil(mu_, until)) {
  }
  return measures_;
}

size_t EventLoop::queued() const {
  MutexLock lock(mu_);
  return queue_.size();
}

void EventLoop::TellMeasures() {
  uint64_t wanted = 0;
  {
    MutexLock lock(mu_);
    wanted = measures_wanted_;
    if (measured_ == wanted) return;
  }
  // After a commit that failed the state is gone until it is restored: the last measures hold.
  std::shared_ptr<const Measures> measures;
  if (mode_ != Mode::kFailed) measures = std::make_shared<const Measures>(machine_->Measure());
  MutexLock lock(mu_);
  if (measures != nullptr) measures_ = std::move(measures);
  measured_ = wanted;
  measured_at_ = std::chrono::steady_clock::now();
  measured_now_.NotifyAll();
}

}  // namespace meshrun::coordinator
