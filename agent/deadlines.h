// How long the agent's calls last.
#pragma once

#include <algorithm>
#include <chrono>

#include "agent/calls.h"

namespace meshrun::agent {

// Calls that do not wait for other ranks: long enough for a coordinator to be started again, or for
// its disk to answer again.
inline constexpr std::chrono::minutes kCallTimeout(5);

inline Calls::Deadline After(std::chrono::nanoseconds timeout) {
  // Callers pass "for ever" as the largest number there is.
  return std::chrono::steady_clock::now() +
         std::min<std::chrono::nanoseconds>(timeout, std::chrono::hours(24 * 365));
}

}  // namespace meshrun::agent
