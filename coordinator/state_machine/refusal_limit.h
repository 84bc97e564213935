// How many refusals of one caller are recorded: 20 at once, then one a second. The next one that is
// recorded says how many were not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/clock.h"

namespace meshrun::coordinator {

class RefusalLimit {
 public:
  // Absent: it is not recorded. Else how many of this caller before it were not.
  std::optional<uint64_t> Admit(const std::string& caller, SteadyNanos now);

 private:
  static constexpr double kAtOnce = 20;
  static constexpr double kPerSecond = 1;
  static constexpr size_t kMostCallers = 10'000;

  struct Caller {
    double left = kAtOnce;
    SteadyNanos as_of{0};
    uint64_t not_recorded = 0;
  };
  std::map<std::string, Caller> callers_;
};

}  // namespace meshrun::coordinator
