// Which random numbers an operation on a sharded tensor gets: (seed, counter), agreed by all ranks
// without a message.
//
//   seed      that of LibTorch's default CPU generator: torch::manual_seed() sets it
//   counter   of this process: 0 after a new seed, and one more with every operation that asks
//
// Ranks agree because they are seeded alike and run the same random operations on sharded tensors
// in the same order. Random numbers that a rank draws for plain tensors do not count: a rank may
// draw data that the others do not. For the same reason torch::manual_seed() with the seed that is
// already set does not restart the count at 0; reseed() and set_random_state() do. Data
// parallel replicas that want numbers of their own are seeded differently.
//
// An operation with a generator of its own takes seed and counter from that: both advance it by one
// draw, alike on all ranks.
//
// What repeats an operation (activation checkpointing) keeps random_state() and sets it again;
// checkpoints store it.
//
// Threads: any; operations of several threads have no order that ranks could agree on.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

#include "ATen/core/Generator.h"
#include "parallel/base/arguments.h"

namespace meshrun {

struct RandomOperation {
  uint64_t seed = 0;
  uint64_t counter = 0;

  bool operator==(const RandomOperation&) const = default;
};

// Takes the next one. `generator`: absent or undefined for the default one.
RandomOperation next_random_operation(const std::optional<at::Generator>& generator = std::nullopt);

namespace detail {

void reseed(uint64_t seed);

}  // namespace detail

// torch::manual_seed(seed), and the counter is 0. All 64 bits of a seed count, which IntArgument
// does not hold.
template <typename Seed>
requires detail::Number<Seed> || std::same_as<Seed, IntArgument>
void reseed(Seed seed) { detail::reseed(static_cast<uint64_t>(seed)); }

// What the next operation will get.
RandomOperation random_state();
// Sets the counter; the seed must be the default generator's: c10::ValueError.
void set_random_state(const RandomOperation& state);

}  // namespace meshrun
