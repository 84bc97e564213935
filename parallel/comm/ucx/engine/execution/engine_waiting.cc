// What the watch is told of the threads that are blocked.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "parallel/comm/ucx/engine/execution/engine_impl.h"

namespace meshrun::ucx {
namespace {

// How often a blocked rank compares its state with its last report.
constexpr std::chrono::milliseconds kLookAgain{200};

bool is_alive(pid_t thread) {
  return syscall(SYS_tgkill, static_cast<long>(getpid()), static_cast<long>(thread), 0L) == 0;
}

}  // namespace

void Engine::Impl::called() {
  if (!reported_) return;
  try {
    withdraw();
  } catch (const std::exception&) {
    // Withdrawn with the next call.
  }
}

void Engine::Impl::note_submitter() {
  thread_local const pid_t self = gettid();
  if (last_submitter_ == self) return;
  submitters_.insert(self);
  last_submitter_ = self;
  if (submitters_.size() <= most_submitters_) return;
  // So a program that makes threads for ever keeps twice as many ids as it has threads.
  std::erase_if(submitters_, [](pid_t thread) { return !is_alive(thread); });
  most_submitters_ = std::max(kFewSubmitters, 2 * submitters_.size());
}

void Engine::Impl::begin_blocking(BlockedThread& thread) {
  if (watch_ == nullptr || thread.is_listed) return;
  thread.id = gettid();
  thread.since = clock_.SteadyNow();
  thread.is_listed = true;
  thread.next = std::exchange(blocked_threads_, &thread);
}

void Engine::Impl::end_blocking(BlockedThread& thread) {
  if (!thread.is_listed) return;
  BlockedThread** link = &blocked_threads_;
  while (*link != &thread) link = &(*link)->next;
  *link = thread.next;
  thread.is_listed = false;
}

void Engine::Impl::tell_watch() {
  if (blocked_threads_ == nullptr) return;
  const SteadyNanos now = clock_.SteadyNow();
  if (now < next_report_) return;
  std::vector<const Operation*> operations;
  std::vector<pid_t> threads;
  for (BlockedThread* thread = blocked_threads_; thread != nullptr; thread = thread->next) {
    // A thread whose operation is done wakes up soon.
    if (thread->since + WaitBoard::kReportAfter > now || thread->operation.is_done()) continue;
    operations.push_back(&thread->operation);
    threads.push_back(thread->id);
  }
  if (operations.empty()) return;
  next_report_ = now + kLookAgain;
  WaitReport report = executor_->wait_report(operations);
  report.other_threads = other_threads(threads);
  report.deadlock_after = deadlock_after_;
  if (reported_ == report) return;
  watch_->report(report);
  reported_ = std::move(report);
}

void Engine::Impl::withdraw() {
  watch_->withdraw(reported_->rank);
  reported_.reset();
  // A thread that calls all the time must not make the others report all the time.
  next_report_ = clock_.SteadyNow() + WaitBoard::kReportAfter;
}

int Engine::Impl::other_threads(const std::vector<pid_t>& blocked) {
  std::erase_if(submitters_, [](pid_t thread) { return !is_alive(thread); });
  // The progress thread calls only in callbacks.
  int others = running_callbacks_->load() > 0 ? 1 : 0;
  for (const pid_t thread : submitters_) {
    const bool is_blocked = std::find(blocked.begin(), blocked.end(), thread) != blocked.end();
    if (thread != thread_id_ && !is_blocked) ++others;
  }
  return others;
}

}  // namespace meshrun::ucx
