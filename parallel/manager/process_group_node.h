// A node of a ProcessGroupConfig's tree: the name of a group, and its size where that is known.
#pragma once

#include <optional>
#include <string>

#include "parallel/base/arguments.h"

namespace meshrun {

struct ProcessGroupNode {
  explicit ProcessGroupNode(std::string name, std::optional<IntArgument> size = std::nullopt);

  std::string name;
  std::optional<int> size;
};

}  // namespace meshrun
