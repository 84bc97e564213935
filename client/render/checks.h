// What `meshrun doctor` looked at, for people. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/render/style.h"
#include "meshrun/v1/cluster_service.pb.h"

namespace meshrun::client {

enum class Level { kOk, kWarn, kFail };

struct Check {
  Level level;
  std::string what;
  std::string found;
  // Empty where all is well.
  std::string advice;
};
using Checks = std::vector<Check>;

// A warning for each limit of jobs that some of these nodes do not keep.
Checks LimitChecks(const std::vector<v1::Node>& nodes);

// "ok", "warn", "fail".
std::string_view LevelName(Level level);
// A row for each, with what to do below it. On a terminal no row is longer than its width: texts
// are wrapped, and a long `what` has a row of its own.
std::string CheckList(const Checks& checks, const Style& style);

}  // namespace meshrun::client
