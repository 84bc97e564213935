// The environment of a rank process: torchrun's variables and meshrun's own. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

using Environment = std::map<std::string, std::string>;

// The daemon's environment as a map; what only concerns the daemon itself is left out of it for
// ranks.
Environment InheritedEnvironment(const char* const* environ);

// What of this host the ranks are told.
struct HostFacts {
  std::string node_name;
  // "unix:/path" of the daemon's agent socket.
  std::string agent_address;
  uint32_t cores = 1;
  bool has_gpus = false;
};

// The whole environment of rank `local_rank` of `record` but for MASTER_ADDR and MASTER_PORT, which
// are known at Start. `inherited` is below the job's own variables, and both are below what meshrun
// sets; only TORCH_NCCL_ASYNC_ERROR_HANDLING, OMP_NUM_THREADS, PYTHONUNBUFFERED and
// CUDA_DEVICE_ORDER yield.
Environment RankEnvironment(const Environment& inherited, const v1::GenerationRecord& record,
                            int local_rank, const HostFacts& host, const v1::RankLaunch& launch);

}  // namespace meshrun::worker
