#include "tests/coordinator/simulation/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace meshrun::coordinator::simulation {
namespace {

constexpr int64_t kMillion = 1'000'000;
constexpr WallNanos kEpoch = std::chrono::seconds(1'700'000'000);

}  // namespace

void Timeline::At(SteadyNanos when, std::function<void()> happen) {
  heap_.push_back({std::max(when, now_), next_order_++, std::move(happen)});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

bool Timeline::Advance(SteadyNanos end) {
  if (heap_.empty() || heap_.front().when > end) {
    now_ = std::max(now_, end);
    return false;
  }
  std::pop_heap(heap_.begin(), heap_.end(), Later);
  const Event event = std::move(heap_.back());
  heap_.pop_back();
  now_ = event.when;
  event.happen();
  return true;
}

void Timeline::Note(std::string text) {
  if (keep_ == 0) return;
  notes_.push_back(fmt::format("{:10.4f}  {}", std::chrono::duration<double>(now_).count(), text));
  if (notes_.size() > keep_) notes_.pop_front();
}

SteadyNanos HostClock::Steady(SteadyNanos true_time) const {
  const __int128 moved = static_cast<__int128>(true_time.count()) * (kMillion + drift) / kMillion;
  return began + nanoseconds(static_cast<int64_t>(moved));
}

WallNanos HostClock::Wall(SteadyNanos true_time) const {
  return kEpoch + wall_error + (Steady(true_time) - began);
}

nanoseconds HostClock::TrueSpan(nanoseconds own) const {
  const __int128 span = static_cast<__int128>(own.count()) * kMillion / (kMillion + drift);
  return nanoseconds(static_cast<int64_t>(span) + 2);
}

}  // namespace meshrun::coordinator::simulation
