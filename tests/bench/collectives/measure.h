// How a case is measured, all ranks together: every contender once to verify and to count, ten
// rounds to warm up, then rounds in which the contenders take turns, in an order drawn anew for
// each round: each once not timed, then a barrier, then once timed. The slowest rank's time counts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/bench/collectives/contender.h"

namespace meshrun::bench {

struct Measured {
  std::string name;
  std::string note;
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  // Medians of the kParts parts into which the timed rounds are cut, in their order: the spread of
  // so many runs. The n-th part of every contender is of the same rounds.
  std::vector<double> parts_us;
  // In one call, the most of any rank.
  int64_t allocations = 0;
  int64_t peak_bytes = 0;
  // Bytes copied by the rank that copied most.
  int64_t copied_bytes = 0;
  std::string problem;  // empty: the result was what it must be
  // Every rank's result lies where the other ranks may write to it.
  bool in_shared_memory = false;
};

// Rounds in each: at least one.
inline constexpr int kParts = 10;

struct Rounds {
  int warm_up = 10;
  int timed = 30;
};

// `engine_copied`: what ucx's engine has copied so far. The result is the same on all ranks.
std::vector<Measured> measure(const Problem& problem, std::vector<Contender> contenders,
                              Rounds rounds, const std::function<int64_t()>& engine_copied);

}  // namespace meshrun::bench
