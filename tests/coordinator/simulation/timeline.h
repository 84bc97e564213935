// True time, which no simulated process can read, and what happens at which moment of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "core/clock.h"

namespace meshrun::coordinator::simulation {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// Things that happen at the same moment happen in the order in which they were planned.
class Timeline {
 public:
  SteadyNanos now() const { return now_; }
  void At(SteadyNanos when, std::function<void()> happen);
  void After(nanoseconds span, std::function<void()> happen) { At(now_ + span, std::move(happen)); }
  // False when nothing happens until `end`; it is `end` then.
  bool Advance(SteadyNanos end);

  // With `keep` 0 nothing is noted, and no text is made.
  void KeepNotes(size_t keep) { keep_ = keep; }
  bool notes_wanted() const { return keep_ > 0; }
  void Note(std::string text);
  const std::deque<std::string>& notes() const { return notes_; }

 private:
  struct Event {
    SteadyNanos when;
    uint64_t order;
    std::function<void()> happen;
  };
  static bool Later(const Event& a, const Event& b) {
    return a.when != b.when ? a.when > b.when : a.order > b.order;
  }

  SteadyNanos now_{0};
  uint64_t next_order_ = 0;
  std::vector<Event> heap_;
  size_t keep_ = 0;
  std::deque<std::string> notes_;
};

// A host's own clocks: the steady one runs too fast or too slow by `drift` parts per million and
// began long ago; the wall clock is wrong by `wall_error`.
struct HostClock {
  int64_t drift = 0;
  SteadyNanos began{0};
  nanoseconds wall_error{0};

  SteadyNanos Steady(SteadyNanos true_time) const;
  WallNanos Wall(SteadyNanos true_time) const;
  // True time that passes until the steady clock has moved by `own`; never too short.
  nanoseconds TrueSpan(nanoseconds own) const;
};

}  // namespace meshrun::coordinator::simulation
