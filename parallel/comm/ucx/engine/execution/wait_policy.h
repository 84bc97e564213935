// How a thread waits for messages: poll, then give the core away, then sleep. Pure.
//
// Measured on 2 cores, a barrier of P ranks, median us (P = 2, 4, 8):
//   50 polls, then yields for ever        0.4    4.6   27
//   50 polls, 10 yields, then sleep       0.4    4.2   18
//   2000 polls, then yields for ever      0.4   74    135     melts down: p90 3 ms
//   sleep at once                         1.3   19     51     a wake-up costs 9 us
// So there are always few polls, and only the length of yielding depends on whether each rank of
// this host has a core. A quota of half a core counts as no core: a thread that spins it away
// stands still for the rest of the kernel's period of 100 ms.
#pragma once

#include "core/clock.h"

namespace meshrun::ucx {

class WaitPolicy {
 public:
  enum class Move { kPoll, kYield, kSleep };

  static constexpr int kPollsBetweenYields = 50;
  static constexpr int kYieldsWhenCrowded = 10;
  static constexpr SteadyNanos kYieldingWhenRoomy{100'000};
  // The progress thread must not take the core from the thread that computes.
  static constexpr SteadyNanos kYieldingOfProgressThread{5'000};
  // Insurance against a wake-up that is never sent (shared memory between two network namespaces),
  // and the answer to a transport that cannot be armed because a peer does not read.
  static constexpr SteadyNanos kLongestSleep{10'000'000};
  static constexpr SteadyNanos kSleepUnarmed{500'000};
  // So often in a row such a transport is asked again at once.
  static constexpr int kBusyAnswers = 20;

  // `cores` this process may use, in fractions under a quota; `local_ranks` share them.
  WaitPolicy(double cores, int local_ranks, bool is_progress_thread = false);

  // Nothing happened in the last poll. After the first kSleep always kSleep: one poll between two
  // sleeps.
  Move next(SteadyNanos now);
  // Something did.
  void reset() {
    polls_ = yields_ = busy_answers_ = 0;
    is_over_ = false;
  }
  // kSleep, and the transport has been asked to be armed. False: poll once more before asking
  // again. True where it is not armed: sleep for kSleepUnarmed.
  bool may_sleep(bool armed);

 private:
  const bool crowded_;
  const SteadyNanos yielding_;
  int polls_ = 0;
  int yields_ = 0;
  int busy_answers_ = 0;
  bool is_over_ = false;
  SteadyNanos since_{0};
};

}  // namespace meshrun::ucx
