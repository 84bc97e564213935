// Ownership of progress, rounds, sleeping, the progress thread.
#include <poll.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "parallel/base/interrupts.h"
#include "parallel/comm/ucx/engine/execution/engine_impl.h"

namespace meshrun::ucx {
namespace {

// Enough for a thread that is woken for the lock; then others' arriving does not stop progress.
constexpr int kYieldsForTheLock = 100;
// Pause between two looks of a wait that may be interrupted (parallel/base/interrupts.h).
constexpr SteadyNanos kBetweenLooks{50'000'000};

timespec timespec_of(SteadyNanos time) {
  return {time.count() / 1'000'000'000, time.count() % 1'000'000'000};
}

}  // namespace

void Engine::Impl::lock_beside() {
  arriving_.fetch_add(1, std::memory_order_relaxed);
  mu_.Lock();
  arriving_.fetch_sub(1, std::memory_order_relaxed);
}

// A std::mutex is not fair: a thread that unlocks and locks again at once has it again.
void Engine::Impl::give_way() {
  if (arriving_.load(std::memory_order_relaxed) == 0) return;
  // Not a Gap: that would count as arriving.
  mu_.Unlock();
  for (int i = 0; i < kYieldsForTheLock && arriving_.load(std::memory_order_relaxed) > 0; ++i) {
    sched_yield();
  }
  mu_.Lock();
}

bool Engine::Impl::wait(Operation& operation, std::optional<std::chrono::nanoseconds> timeout) {
  if (operation.is_done()) return true;
  if (is_forked()) return false;
  const SteadyNanos deadline = timeout ? clock_.SteadyNow() + *timeout : SteadyNanos::max();
  const auto is_over = [&] {
    return operation.is_done() || (timeout && clock_.SteadyNow() >= deadline);
  };
  bool is_done;
  Actions actions;
  {
    const Lock lock(*this);
    called();
    actions = wait_until(deadline, timeout ? nullptr : &operation, is_over,
                         /*may_interrupt=*/true);
    called();
    is_done = operation.is_done();
    if (!is_done && !is_broken_) executor_->set_drive(operation, Drive::kThread);
    if (progress_owner_ == ProgressOwner::kNobody) hand_on();
  }
  run(std::move(actions));
  return is_done;
}

template <typename Over>
Actions Engine::Impl::wait_until(SteadyNanos deadline, const Operation* operation, Over is_over,
                                 bool may_interrupt) {
  std::optional<BlockedThread> thread;
  if (operation != nullptr) thread.emplace(BlockedThread{*operation});
  BlockedThread* const blocked = thread ? &*thread : nullptr;
  int yields_left = kYieldsForProgress;
  // Who waits for room has nobody to raise it.
  const bool is_interruptible = may_interrupt && has_interrupt_check();
  SteadyNanos next_look =
      is_interruptible ? clock_.SteadyNow() + kBetweenLooks : SteadyNanos::max();
  const auto must_stop = [&]() MESHRUN_REQUIRES(mu_) {
    return is_over() || (is_interruptible && clock_.SteadyNow() >= next_look);
  };
  ++callers_;
  Actions actions;
  while (!is_over() && !is_broken_) {
    if (is_interruptible && clock_.SteadyNow() >= next_look) {
      // The check may take its time: it waits for a lock of its own.
      if (progress_owner_ == ProgressOwner::kNobody) hand_on();
      const Gap gap(*this);
      if (is_interrupted()) break;
      next_look = clock_.SteadyNow() + kBetweenLooks;
      continue;
    }
    const bool is_free = progress_owner_ == ProgressOwner::kNobody ||
                         (progress_owner_ == ProgressOwner::kThread && thread_sleeps_);
    // A wake-up by another core takes longer than the rest of the thread's round.
    if (progress_owner_ == ProgressOwner::kThread && !is_free && yields_left-- > 0) {
      const Gap gap(*this);
      sched_yield();
      continue;
    }
    if (!is_free) {
      ++parked_callers_;
      if (blocked != nullptr) begin_blocking(*blocked);
      if (const SteadyNanos until = std::min(deadline, next_look); until != SteadyNanos::max()) {
        callers_cv_.WaitUntil(mu_, std::chrono::steady_clock::now() + (until - clock_.SteadyNow()));
      } else {
        callers_cv_.Wait(mu_);
      }
      --parked_callers_;
      continue;
    }
    progress_owner_ = ProgressOwner::kCaller;
    if (executor_->has_unfinished_for_thread()) ++caller_drives_;
    actions = drive(ProgressOwner::kCaller, blocked, std::min(deadline, next_look), must_stop);
    progress_owner_ = ProgressOwner::kNobody;
    if (actions.empty() || is_over()) continue;
    --callers_;
    if (blocked != nullptr) end_blocking(*blocked);
    // Callbacks may take their time, and may wait themselves.
    if (actions.has_callbacks()) {
      called();
      hand_on();
    }
    {
      const Gap gap(*this);
      run(actions.take());
    }
    ++callers_;
  }
  --callers_;
  if (blocked != nullptr) end_blocking(*blocked);
  return actions;
}

void Engine::Impl::wait_for_room(uint32_t group, bool is_point_to_point, SteadyNanos deadline) {
  const auto is_late = [&] { return clock_.SteadyNow() >= deadline; };
  while (!is_broken_ && executor_->is_full(group, is_point_to_point) && !is_late()) {
    // Collectives end only when all ranks have called them, so none behind the first one ends
    // before it is called: this rank is blocked in that. Any send or receive that ends makes room.
    std::shared_ptr<Operation> oldest;
    if (!is_point_to_point) oldest = executor_->oldest_collective(group);
    Actions actions = wait_until(
        deadline, oldest.get(),
        [&]() MESHRUN_REQUIRES(mu_) {
          return (oldest != nullptr && oldest->is_done()) ||
                 !executor_->is_full(group, is_point_to_point) || is_late();
        },
        /*may_interrupt=*/false);
    if (actions.empty()) continue;
    if (actions.has_callbacks() && progress_owner_ == ProgressOwner::kNobody) hand_on();
    const Gap gap(*this);
    run(std::move(actions));
    oldest.reset();
  }
  called();
  if (progress_owner_ == ProgressOwner::kNobody) hand_on();
}

void Engine::Impl::poll() {
  if (is_forked()) return;
  Actions actions;
  {
    const Lock lock(*this);
    if (progress_owner_ == ProgressOwner::kNobody) {
      changes([&]() MESHRUN_REQUIRES(mu_) { executor_->progress(); });
    }
    actions = collect();
  }
  run(std::move(actions));
}

template <typename Stop>
Actions Engine::Impl::drive(ProgressOwner self, BlockedThread* thread, SteadyNanos deadline,
                            Stop must_stop) {
  WaitPolicy policy(cores_, local_ranks_, self == ProgressOwner::kThread);
  while (true) {
    bool moved = false;
    if (!changes([&]() MESHRUN_REQUIRES(mu_) { moved = executor_->progress(); })) return {};
    if (has_actions()) {
      Actions actions = collect();
      if (!actions.empty()) return actions;
    }
    if (must_stop()) return {};
    if (moved) {
      policy.reset();
      give_way();
    } else {
      switch (policy.next(executor_->now())) {
        case WaitPolicy::Move::kPoll:
          give_way();
          break;
        case WaitPolicy::Move::kYield:
          // Not a Gap: that would count as arriving.
          mu_.Unlock();
          sched_yield();
          mu_.Lock();
          break;
        case WaitPolicy::Move::kSleep:
          if (thread != nullptr) begin_blocking(*thread);
          try {
            tell_watch();
          } catch (const std::exception&) {
            // Told at the next look.
          }
          sleep(self, policy, deadline);
          break;
      }
    }
    // Others had the lock.
    if (must_stop()) return {};
  }
}

void Engine::Impl::sleep(ProgressOwner self, WaitPolicy& policy, SteadyNanos deadline) {
  const bool armed = executor_->transport().arm();
  if (!policy.may_sleep(armed)) return give_way();
  if (sleeps_left_ > 0) --sleeps_left_;
  SteadyNanos time = armed ? WaitPolicy::kLongestSleep : WaitPolicy::kSleepUnarmed;
  deadline = std::min(deadline, executor_->next_deadline().value_or(SteadyNanos::max()));
  if (deadline != SteadyNanos::max()) {
    time = std::clamp(deadline - clock_.SteadyNow(), SteadyNanos(0), time);
  }
  const timespec limit = timespec_of(time);
  pollfd event{executor_->transport().event_fd(), POLLIN, 0};
  bool& sleeps = self == ProgressOwner::kThread ? thread_sleeps_ : caller_sleeps_;
  sleeps = true;
  mu_.Unlock();
  if (armed) {
    ppoll(&event, 1, &limit, nullptr);
  } else {
    nanosleep(&limit, nullptr);
  }
  mu_.Lock();
  sleeps = false;
}

bool Engine::Impl::needs_thread() const {
  if (is_broken_) return false;
  return executor_->has_unfinished_for_thread() || sleeps_left_ > 0 || has_deferred_;
}

void Engine::Impl::hand_on() {
  if (parked_callers_ > 0) {
    callers_cv_.NotifyOne();
  } else if (callers_ == 0 && needs_thread()) {
    work_was_left_ = true;
    call_thread(Urgency::kLeft);
  }
}

void Engine::Impl::call_thread(Urgency urgency) {
  if (thread_sleeps_) {
    // A caller took ownership from it while it slept. It sleeps on as the owner.
    progress_owner_ = ProgressOwner::kThread;
    return notice();
  }
  if (thread_rest_ == Rest::kNone) return;
  const bool is_urgent = urgency == Urgency::kNow || sleeps_left_ > 0 || has_deferred_;
  if (thread_rest_ == Rest::kNap && !is_urgent) return;
  if (thread_rest_ == Rest::kLongNap && !is_urgent && urgency == Urgency::kSoon) return;
  thread_rest_ = Rest::kNone;
  ++wake_ups_;
  thread_cv_.NotifyOne();
}

void Engine::Impl::notice(Urgency urgency) {
  if (progress_owner_ == ProgressOwner::kNobody) {
    if (callers_ == 0 && needs_thread()) call_thread(urgency);
    return;
  }
  const bool sleeps = progress_owner_ == ProgressOwner::kThread ? thread_sleeps_ : caller_sleeps_;
  // Arming tells, for a tenth of what waking costs, whether there is anything to wake for.
  Transport& transport = executor_->transport();
  if (sleeps && (has_deferred_ || !transport.arm())) transport.wake();
}

bool Engine::Impl::rest(SteadyNanos naps_until) {
  const bool is_nap = clock_.SteadyNow() < naps_until;
  const bool was_left = std::exchange(work_was_left_, false);
  const bool is_long =
      std::exchange(seen_caller_drives_, caller_drives_) != caller_drives_ && !was_left;
  thread_rest_ = !is_nap ? Rest::kWait : is_long ? Rest::kLongNap : Rest::kNap;
  if (is_nap) {
    thread_cv_.WaitUntil(mu_, std::chrono::steady_clock::now() + (is_long ? kLongNap : kNap));
  } else {
    thread_cv_.Wait(mu_);
  }
  thread_rest_ = Rest::kNone;
  return !is_nap || seen_caller_drives_ != caller_drives_;
}

void Engine::Impl::run_thread() {
  mu_.Lock();
  thread_id_ = gettid();
  SteadyNanos naps_until{0};
  const auto must_stop = [this]() MESHRUN_REQUIRES(mu_) {
    return stopping_ || progress_owner_ != ProgressOwner::kThread || callers_ > 0 ||
           !needs_thread();
  };
  while (!stopping_) {
    if (is_broken_ && !(lost_.empty() && callbacks_.empty())) {
      run_what_is_left();
      continue;
    }
    if (progress_owner_ != ProgressOwner::kNobody || callers_ > 0 || !needs_thread()) {
      if (rest(naps_until)) naps_until = clock_.SteadyNow() + kNapping;
      continue;
    }
    progress_owner_ = ProgressOwner::kThread;
    Actions actions = drive(ProgressOwner::kThread, nullptr, SteadyNanos::max(), must_stop);
    if (progress_owner_ == ProgressOwner::kThread) {
      progress_owner_ = ProgressOwner::kNobody;
      if (parked_callers_ > 0) callers_cv_.NotifyOne();
    }
    naps_until = clock_.SteadyNow() + kNapping;
    if (actions.empty()) continue;
    const int callbacks =
        actions.has_callbacks() ? static_cast<int>(actions.seldom->callbacks.size()) : 0;
    *running_callbacks_ += callbacks;
    mu_.Unlock();
    run(std::move(actions));
    mu_.Lock();
    *running_callbacks_ -= callbacks;
  }
  if (is_broken_) run_what_is_left();
  mu_.Unlock();
}

}  // namespace meshrun::ucx
