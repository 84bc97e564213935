// How many refusals of one caller are recorded: 20 at once, then one a second, unless it is told
// otherwise. The next one that is recorded says how many were not.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/clock.h"

namespace meshrun::coordinator {

class RefusalLimit {
 public:
  RefusalLimit() = default;
  RefusalLimit(double at_once, double per_second) : at_once_(at_once), per_second_(per_second) {}

  // Absent: it is not recorded. Else how many of this caller before it were not.
  std::optional<uint64_t> Admit(const std::string& caller, SteadyNanos now);

 private:
  static constexpr size_t kMostCallers = 10'000;

  struct Caller {
    double left = 0;
    SteadyNanos as_of{0};
    uint64_t not_recorded = 0;
  };
  double at_once_ = 20;
  double per_second_ = 1;
  std::map<std::string, Caller> callers_;
};

}  // namespace meshrun::coordinator
