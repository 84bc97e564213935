// Random numbers that are pure functions of their arguments, so that all ranks agree without a
// message.
#pragma once

#include <cstdint>

namespace meshrun::jobs {

// Sebastiano Vigna's splitmix64 finaliser: a bijection whose outputs pass for independent.
inline uint64_t mix(uint64_t value) {
  value += 0x9e37'79b9'7f4a'7c15;
  value = (value ^ value >> 30) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ value >> 27) * 0x94d0'49bb'1331'11eb;
  return value ^ value >> 31;
}

// Maps a uniform 64-bit value onto [0, bound) by the high half of the product (Lemire); the bias of
// bound / 2^64 is below 1e-9 for bounds below 2^34.
inline int64_t scale_to(uint64_t value, int64_t bound) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(value) * bound >> 64);
}

}  // namespace meshrun::jobs
