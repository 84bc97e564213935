#include "core/clock.h"

namespace meshrun {
namespace {

class RealClock : public Clock {
 public:
  SteadyNanos SteadyNow() const override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
  WallNanos WallNow() const override { return std::chrono::system_clock::now().time_since_epoch(); }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock* const kClock = new RealClock;
  return *kClock;
}

}  // namespace meshrun
