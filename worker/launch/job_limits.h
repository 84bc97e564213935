// What a job may use on this host: what it has asked for, for each of its ranks here. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "meshrun/v1/supervisor.pb.h"

namespace meshrun::worker {

struct HostLimits {
  // What this host offers: a job that asks for no memory may use all of it, and not more.
  uint64_t memory_bytes = 0;
  uint64_t pids_per_rank = 4096;
  // GPUs by their index here, and N of each /dev/nvidiaN that there is, offered or not. A job opens
  // its own alone.
  std::map<uint32_t, uint32_t> minor_by_gpu;
  std::vector<uint32_t> minors;
};

// `beside`: ranks of an earlier generation that are still there, beside those of this one.
v1::ResourceLimits LimitsFor(const v1::Prepare& prepare, const HostLimits& host, uint64_t beside);

// The larger of each, and the devices of both: limits do not shrink under processes that live on.
v1::ResourceLimits Both(const v1::ResourceLimits& one, const v1::ResourceLimits& other);

}  // namespace meshrun::worker
