// Whether the state that a coordinator takes over is still a copy, whose roll call is to come
// (state_machine/roll_call.h). Coordinators that were started with --restored or --import may be
// standbys for days: one roll call is enough for all of them.
//
// The row of the term tells. A takeover raises it by one, and the end of a roll call once more. So
// two terms that others have begun since this coordinator started are a roll call that is over.
// Where another one led already at the start, one more term is enough, or the time of a roll call.
//
// Pure. Threads: any, one at a time; except OnRollCallOver.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "core/clock.h"

namespace meshrun::coordinator {

class StateCopy {
 public:
  // A roll call takes less.
  static constexpr std::chrono::minutes kLongestRollCall{2};

  explicit StateCopy(bool is_copy) : is_copy_(is_copy) {}

  bool is_copy() const { return is_copy_; }
  // This coordinator has started, and has seen the state for the first time. `term`: that of the
  // row; 0 without one.
  void OnStart(uint64_t term, bool another_leads, SteadyNanos now);
  // This coordinator takes over, and begins the next term. Returns whether a roll call is to come.
  bool OnTakeover(uint64_t term, SteadyNanos now);
  void OnRollCallOver() { is_copy_ = false; }

 private:
  std::atomic<bool> is_copy_;
  // Terms up to this one say nothing; absent: the state was not seen yet.
  std::optional<uint64_t> known_;
  bool another_led_ = false;
  SteadyNanos started_{0};
};

}  // namespace meshrun::coordinator
