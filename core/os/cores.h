// Cores that a process may use: those of its affinity, or less where a cgroup has a CPU quota.
//
// A quota may be a fraction: with a quarter of a core, a thread that spins for 25 ms stands still
// for the next 75 ms.
// Threads: any. No errors: what cannot be read limits nothing.
#pragma once

#include <cstdint>
#include <string>

namespace meshrun::os {

struct CpuQuota {
  double cores = 0;     // 0: none
  uint64_t cgroup = 0;  // a number of the one that has it: all processes of it and below share it
};

// The smallest quota of the process's own cgroup and of the cgroups above it, version 1 or 2. A
// container that sees only its own cgroup gets that one's quota. `membership`, `root`: where Linux
// has both.
CpuQuota FindCpuQuota(const std::string& membership = "/proc/self/cgroup",
                      const std::string& root = "/sys/fs/cgroup");

// Number of cores in the calling thread's affinity; at least one, without regard to a quota.
int CoresOfAffinity();

// The lesser of both.
double UsableCores(const CpuQuota& quota);

// That number rounded up; by default of this process, now.
uint32_t WholeCores(const CpuQuota& quota = FindCpuQuota());

}  // namespace meshrun::os
