// Where the kernel shows its cgroups.
#pragma once

#include <string>
#include <vector>

#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

// The group of the process whose membership file this is, in each hierarchy that is mounted.
// `membership`: /proc/PID/cgroup; `mounts`: /proc/PID/mountinfo. A container that sees only its own
// part of a hierarchy is in the top group of that part.
std::vector<v1::ControlGroup::Hierarchy> FindHierarchies(const std::string& membership,
                                                         const std::string& mounts);

bool Has(const v1::ControlGroup::Hierarchy& hierarchy, std::string_view controller);

}  // namespace meshrun::worker
