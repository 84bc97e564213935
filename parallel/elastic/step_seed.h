// The seed of a step's random numbers: a pure function, so that a rank which takes another one's
// place, or a run which resumes, draws what would have been drawn without the change.
#pragma once

#include <concepts>
#include <cstdint>

#include "parallel/base/arguments.h"

namespace meshrun {

namespace detail {

// Sebastiano Vigna's splitmix64.
inline uint64_t split_mix(uint64_t value) {
  value += 0x9e37'79b9'7f4a'7c15;
  value = (value ^ value >> 30) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ value >> 27) * 0x94d0'49bb'1331'11eb;
  return value ^ value >> 31;
}

}  // namespace detail

// A number of which all 64 bits count, unlike IntArgument's.
template <typename Seed>
concept SeedNumber = detail::Number<Seed> || std::same_as<Seed, IntArgument>;

// mix(mix(mix(seed) + step) + stream), mix being splitmix64. ElasticState::seed_each_step() gives
// each rank the numbers that torch::manual_seed(step_seed(seed, step, rank)) gives.
template <SeedNumber Seed>
inline uint64_t step_seed(Seed seed, IntArgument step, IntArgument stream) {
  const uint64_t of_step = detail::split_mix(detail::split_mix(static_cast<uint64_t>(seed)) +
                                             static_cast<uint64_t>(static_cast<int64_t>(step)));
  return detail::split_mix(of_step + static_cast<uint64_t>(static_cast<int64_t>(stream)));
}

}  // namespace meshrun
