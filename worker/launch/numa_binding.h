// On which cores of its host a rank runs: JobSpec.numa_binding, torchrun's --numa-binding. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "core/os/core_set.h"
#include "meshrun/v1/common.pb.h"
#include "meshrun/v1/job.pb.h"
#include "worker/inventory/core_topology.h"

namespace meshrun::worker {

// Cores of each of `ranks`, which are those of one host in order of local rank. A rank gets the
// cores near each of its GPUs; `gpus`: all that the host offers, since each has a part of its node
// whether a rank uses it or not. Ranks without GPUs are spread over the nodes of `topology` in
// order. INVALID_ARGUMENT: the rank and its node, where that has no core for it.
absl::StatusOr<std::vector<os::CoreSet>> BindRanks(v1::NumaBinding binding,
                                                   const CoreTopology& topology,
                                                   const std::vector<v1::Gpu>& gpus,
                                                   const std::vector<v1::RankAssignment>& ranks);

}  // namespace meshrun::worker
