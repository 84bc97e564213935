// Philox-4x32-10: random words as a function of a key and a counter, without state.
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011; the values
// are those of their Random123 library.
//
// Pure, without LibTorch. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace meshrun {

using PhiloxBlock = std::array<uint32_t, 4>;

// One block of four words.
PhiloxBlock philox(PhiloxBlock counter, std::array<uint32_t, 2> key);

// An endless sequence of words per (seed, operation): word w is word w % 4 of the block with the
// counter (w / 4, operation), low halves first, under the key `seed`.
struct WordSequence {
  uint64_t seed = 0;
  uint64_t operation = 0;

  // Words begin .. begin + count - 1; those beyond 2^64 begin again at 0.
  void read(uint64_t begin, size_t count, uint32_t* words) const;
};

}  // namespace meshrun
