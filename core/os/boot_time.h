// CLOCK_BOOTTIME: one clock for all processes of a host, that a suspended host does not stop.
#pragma once

#include <time.h>

#include <chrono>

namespace meshrun::os {

inline std::chrono::nanoseconds BootTimeNow() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace meshrun::os
