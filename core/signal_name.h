// "SIGKILL" for 9, "signal 65" for a number without a name. Pure.
#pragma once

#include <string.h>

#include <string>

namespace meshrun {

// SIGRTMAX on Linux.
inline constexpr int kHighestSignal = 64;

inline std::string SignalName(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? "signal " + std::to_string(signal) : std::string("SIG") + name;
}

}  // namespace meshrun
