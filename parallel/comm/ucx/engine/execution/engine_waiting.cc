// What the watch is told of a rank that is blocked.
#include <sys/syscall.h>
#include <unistd.h>

#include "parallel/comm/ucx/engine/execution/engine_impl.h"

namespace meshrun::ucx {
namespace {

// How often a rank that is blocked looks whether what it has reported has changed.
constexpr std::chrono::milliseconds kLookAgain{200};

bool is_alive(pid_t thread) {
  return syscall(SYS_tgkill, static_cast<long>(getpid()), static_cast<long>(thread), 0L) == 0;
}

}  // namespace

void Engine::Impl::called() {
  ++calls_;
  if (reported_) withdraw();
}

void Engine::Impl::note_submitter() {
  thread_local const pid_t self = gettid();
  if (last_submitter_ == self) return;
  last_submitter_ = self;
  submitters_.insert(self);
}

void Engine::Impl::blocked_in(const Operation& operation) {
  if (watch_ == nullptr || operation.is_done()) return;
  const SteadyNanos now = clock_.SteadyNow();
  if (calls_seen_ != calls_) {
    calls_seen_ = calls_;
    next_report_ = now + WaitBoard::kReportAfter;
  }
  if (now < next_report_) return;
  next_report_ = now + kLookAgain;
  if (callers_ > 1 || callbacks_running_ > 0 || others_may_call()) return withdraw();
  WaitReport report = executor_->wait_report(operation);
  if (reported_ == report) return;
  watch_->report(report);
  reported_ = std::move(report);
}

void Engine::Impl::withdraw() {
  if (!reported_) return;
  watch_->withdraw(reported_->rank);
  reported_.reset();
}

bool Engine::Impl::others_may_call() {
  std::erase_if(submitters_, [](pid_t thread) { return !is_alive(thread); });
  for (const pid_t thread : submitters_) {
    if (thread != gettid() && thread != thread_id_) return true;
  }
  return false;
}

}  // namespace meshrun::ucx
