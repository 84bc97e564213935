// Single limits of a cgroup.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

// Sets one of kAllLimits (cgroups.h) on a group, as far as `limits` has it; "freezer" sets none.
absl::Status SetLimit(const v1::ControlGroup::Hierarchy& group, std::string_view limit,
                      const v1::ResourceLimits& limits);

}  // namespace meshrun::worker
