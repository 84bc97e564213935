// How the coordinator's clock stands to this host's CLOCK_BOOTTIME, learned from heartbeats.
//
// The coordinator says when a heartbeat came. That was between its sending and its answer, so the
// middle of these two is wrong by half of the time between them at most. The fastest of the last
// kSamples answers is the estimate. Answers that the newest one contradicts do not count: a clock
// has moved between them. For pictures of many hosts alone: no decision depends on it.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>

namespace meshrun::worker {

class CoordinatorClock {
 public:
  static constexpr size_t kSamples = 16;

  struct Comparison {
    // Time on the coordinator's clock minus time on this host's.
    std::chrono::nanoseconds offset{0};
    std::chrono::nanoseconds error{0};
  };

  // `received`: on the coordinator's clock.
  void Add(std::chrono::nanoseconds sent, std::chrono::nanoseconds received,
           std::chrono::nanoseconds answered);
  // Another coordinator has another clock.
  void Clear() { samples_.clear(); }
  // Absent: no heartbeat was answered yet.
  std::optional<Comparison> Best() const;

 private:
  std::deque<Comparison> samples_;
};

}  // namespace meshrun::worker
