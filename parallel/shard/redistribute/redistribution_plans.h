// The plans that a spec keeps, with the collectives of their steps made ready. Internal to
// redistribute/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/collectives/planned_collective.h"
#include "parallel/shard/redistribute/redistribute.h"

namespace meshrun {

struct PreparedStep {
  RedistributionStep step;
  // Of an all-reduce.
  ShardMesh::Group group;
  uint64_t agreed = 0;
  std::string words;
  // Of all others on the wire.
  std::optional<PlannedCollective> collective;
};

using PreparedStepPtr = std::shared_ptr<const PreparedStep>;

struct RedistributionPlans::Prepared {
  std::vector<PreparedStepPtr> steps;
  // The last one on the wire, where none after it reads what arrives; else their number.
  size_t may_go_on = 0;
};

}  // namespace meshrun
