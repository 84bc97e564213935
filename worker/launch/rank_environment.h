// The environment of a rank process: torchrun's variables and meshrun's own. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/os/core_set.h"
#include "meshrun/v1/supervisor.pb.h"
#include "worker/launch/log_layout.h"

namespace meshrun::worker {

using Environment = std::map<std::string, std::string>;

// The daemon's environment as a map, without the variables that only concern the daemon.
Environment InheritedEnvironment(const char* const* environ);

// Without what says who the daemon's user is: the ranks are somebody else's.
Environment WithoutUser(Environment environment);

// Puts the programs of the job's VIRTUAL_ENV first in PATH: a submitter who is the ranks' user
// sends it along. Unchanged where the job has none, or a PATH of its own.
Environment WithVirtualEnv(Environment environment, const v1::JobSpec& spec);

// Facts about this host that ranks are told.
struct HostFacts {
  std::string node_name;
  // "unix:/path" of the daemon's socket for the ranks' job.
  std::string agent_address;
  uint32_t cores = 1;
  bool has_gpus = false;
  // By index, where a job cannot open the GPUs of others: then CUDA numbers its own from 0, and
  // only these names tell which is which. Empty: indexes do.
  std::map<uint32_t, std::string> gpu_uuids = {};
  // For GLOO_SOCKET_IFNAME of jobs of several hosts: the interface with this host's address, where
  // the host's own name leads to the loopback. Empty: the name leads out.
  std::string gloo_interface = "";
  // On which each rank of the job runs, by local rank. Empty: on all of them.
  std::vector<os::CoreSet> cores_of_ranks = {};
  // Limit of each output file of a rank; 0: none.
  uint64_t log_limit_bytes = 0;
  LogLayout log_layout = {};
};

// The whole environment of rank `local_rank` of `record`, except MASTER_ADDR and MASTER_PORT, which
// are known only at Start. The job's own variables replace `inherited` ones, and meshrun's replace
// both; only TORCH_NCCL_ASYNC_ERROR_HANDLING, OMP_NUM_THREADS, PYTHONUNBUFFERED, GLOO_SOCKET_IFNAME
// and CUDA_DEVICE_ORDER keep the job's or the inherited value.
Environment RankEnvironment(const Environment& inherited, const v1::GenerationRecord& record,
                            int local_rank, const HostFacts& host, const v1::RankLaunch& launch);

}  // namespace meshrun::worker
