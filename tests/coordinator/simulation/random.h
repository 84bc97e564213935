// Randomness of one seed. The same seed draws the same numbers on every machine.
#pragma once

#include <chrono>
#include <cstdint>

namespace meshrun::coordinator::simulation {

// SplitMix64. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, n); n is at least 1.
  uint64_t Below(uint64_t n) { return Next() % n; }
  // In [least, most].
  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(Below(static_cast<uint64_t>(most - least + 1)));
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  std::chrono::nanoseconds Between(std::chrono::nanoseconds least, std::chrono::nanoseconds most) {
    return std::chrono::nanoseconds(Between(least.count(), most.count()));
  }

 private:
  uint64_t state_;
};

}  // namespace meshrun::coordinator::simulation
