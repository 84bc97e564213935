// How long a call took that waits for at most `limit` and has failed, which may be sooner: "0.5 s
// (at most 300 s)". Pure; no errors.
#pragma once

#include <chrono>
#include <string>

#include "fmt/format.h"

namespace meshrun {

inline std::string spent_of(std::chrono::nanoseconds spent, std::chrono::milliseconds limit) {
  const double seconds = std::chrono::duration<double>(spent).count();
  const double most = std::chrono::duration<double>(limit).count();
  return fmt::format("{:.1f} s (at most {:g} s)", seconds, most);
}

inline std::string spent_of(std::chrono::steady_clock::time_point began,
                            std::chrono::milliseconds limit) {
  return spent_of(std::chrono::steady_clock::now() - began, limit);
}

}  // namespace meshrun
