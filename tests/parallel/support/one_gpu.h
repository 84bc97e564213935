// How several ranks of NCCL share one GPU in a test, which NCCL refuses by default.
//
//   as hosts     with any NCCL: each rank says by NCCL_HOSTID that it is a host of its own, so that
//                none sees the other's GPU; bytes go over sockets of the loopback interface
//   on one host  with NCCL 2.30 or later (NCCL_MULTI_RANK_GPU_ENABLE=1), which LibTorch 2.11 does
//                not bring along: MESHRUN_TEST_NCCL names a libnccl.so.2 to load in its place
//
// In both the ranks are processes that take turns on the GPU, so nothing here says how fast NCCL
// is.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/parallel/support/rank_processes.h"

namespace meshrun {

enum class GpuSharing { kAsHosts, kOnOneHost };

// The libnccl.so.2 that a test is to load; empty: LibTorch's.
inline std::string other_nccl() {
  const char* const path = std::getenv("MESHRUN_TEST_NCCL");
  return path == nullptr ? "" : path;
}

inline std::vector<Variables> ranks_on_one_gpu(int world_size, GpuSharing sharing) {
  std::vector<Variables> ranks = env_ranks(world_size);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string gpu = visible == nullptr || *visible == '\0' ? "0" : visible;
  gpu = gpu.substr(0, gpu.find(','));
  // A rank takes as many of the GPU's cores as it has channels; all at once must fit.
  constexpr int kChannels = 8;
  for (int rank = 0; rank < world_size; ++rank) {
    Variables& variables = ranks[static_cast<size_t>(rank)];
    variables["MESHRUN_BACKEND"] = "nccl";
    variables["CUDA_VISIBLE_DEVICES"] = gpu;
    variables["NCCL_MAX_CTAS"] = std::to_string(kChannels / world_size);
    variables["NCCL_NVLS_ENABLE"] = "0";
    variables["NCCL_SOCKET_IFNAME"] = "lo";
    variables["NCCL_IB_DISABLE"] = "1";
    // Where one rank dies, NCCL's watchdog in the others sleeps four times as long; a minute else.
    variables["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "1000";
    if (sharing == GpuSharing::kAsHosts) {
      variables["NCCL_HOSTID"] = "meshrun-test-" + std::to_string(rank);
    } else {
      variables["NCCL_MULTI_RANK_GPU_ENABLE"] = "1";
      if (!other_nccl().empty()) variables["LD_PRELOAD"] = other_nccl();
    }
  }
  return ranks;
}

}  // namespace meshrun
