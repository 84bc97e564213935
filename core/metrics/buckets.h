// A histogram: how many values fell below each bound. Pure; no locks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace meshrun::metrics {

// From a millisecond to ten seconds: calls, commits.
inline constexpr double kShortSeconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                           0.25,  0.5,    1,     2.5,  5,     10};
// From a tenth of a second to a day: waits of people and of jobs.
inline constexpr double kLongSeconds[] = {0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14'400, 86'400};
// How many of something go together.
inline constexpr double kNumbers[] = {1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000};

class Buckets {
 public:
  // Rising bounds, which outlive this.
  explicit Buckets(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}

  void Observe(double value) { Observe(value, 1); }
  void Observe(double value, uint64_t times) {
    const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    counts_[static_cast<size_t>(place)] += times;
    count_ += times;
    sum_ += value * static_cast<double>(times);
  }

  std::span<const double> bounds() const { return bounds_; }
  // Values above the bound before and not above this one; the last count is of those above all.
  const std::vector<uint64_t>& counts() const { return counts_; }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace meshrun::metrics
