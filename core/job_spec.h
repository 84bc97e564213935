// The rules of a JobSpec: defaults, limits and checks that need neither nodes nor files. The client
// applies them before it submits, the coordinator when it accepts, the worker where it reads a
// default: all judge a job alike. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun {

// From SIGTERM to SIGKILL, where the job does not say.
inline constexpr std::chrono::seconds kDefaultKillGrace{5};
inline constexpr size_t kLongestJobName = 40;
// Jobs of one array.
inline constexpr int kMostOfAnArray = 1000;

// "./Train_UNet.py" -> "train-unet"; "job" where nothing is left. Always a name that CheckJobName
// accepts.
std::string JobNameFromCommand(std::string_view command);
// [a-z0-9-], at most kLongestJobName characters, neither the first nor the last one a '-'.
// INVALID_ARGUMENT shows a name that would do.
absl::Status CheckJobName(std::string_view name);

// Variables that meshrun sets for each rank, whatever the job says: RANK, WORLD_SIZE, ...
bool IsSetForRanks(std::string_view variable);

// Fills in defaults (name, nodes, ranks per node, CPUs per rank) and checks the rest: what no
// cluster could run is refused. A second call changes nothing.
// INVALID_ARGUMENT: which field is wrong, its value, and what to write instead.
absl::Status NormalizeJobSpec(v1::JobSpec& spec);

// The values that hold for a spec, normalized or not.
uint32_t MinNodes(const v1::JobSpec& spec);
uint32_t MaxNodes(const v1::JobSpec& spec);
std::chrono::nanoseconds KillGrace(const v1::JobSpec& spec);
uint32_t CpusPerProc(const v1::JobSpec& spec);

}  // namespace meshrun
