#include "parallel/comm/ucx/engine/execution/wait_policy.h"

namespace meshrun::ucx {

WaitPolicy::WaitPolicy(double cores, int local_ranks, bool is_progress_thread)
    : crowded_(local_ranks > cores),
      yielding_(is_progress_thread ? kYieldingOfProgressThread : kYieldingWhenRoomy) {}

WaitPolicy::Move WaitPolicy::next(SteadyNanos now) {
  if (is_over_) return Move::kSleep;
  if (polls_ == 0 && yields_ == 0) since_ = now;
  if (++polls_ < kPollsBetweenYields) return Move::kPoll;
  polls_ = 0;
  is_over_ = now - since_ >= yielding_ || (crowded_ && yields_ >= kYieldsWhenCrowded);
  if (is_over_) return Move::kSleep;
  ++yields_;
  return Move::kYield;
}

bool WaitPolicy::may_sleep(bool armed) {
  busy_answers_ = armed ? 0 : busy_answers_ + 1;
  return armed || busy_answers_ > kBusyAnswers;
}

}  // namespace meshrun::ucx
