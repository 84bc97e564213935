// Time as an interface, so that a test moves it instead of sleeping.
#pragma once

#include <chrono>

namespace meshrun {

// Steady time since an arbitrary start: for ages, leases and deadlines.
using SteadyNanos = std::chrono::nanoseconds;
// Wall time since the Unix epoch: for what is shown to people, never for a decision.
using WallNanos = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual SteadyNanos SteadyNow() const = 0;
  virtual WallNanos WallNow() const = 0;

  // The host's clocks; never destroyed.
  static const Clock& Real();
};

// Moves only when told to. Not thread-safe.
class FakeClock : public Clock {
 public:
  SteadyNanos SteadyNow() const override { return steady_; }
  WallNanos WallNow() const override { return wall_; }
  void Advance(std::chrono::nanoseconds by) {
    steady_ += by;
    wall_ += by;
  }
  void StepWall(std::chrono::nanoseconds by) { wall_ += by; }

 private:
  SteadyNanos steady_{0};
  WallNanos wall_{std::chrono::seconds(1'700'000'000)};
};

}  // namespace meshrun
