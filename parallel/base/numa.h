// On which NUMA node memory of this process should lie. Threads: any. No errors: without an answer
// the kernel decides, page by page, by who writes first.
#pragma once

#include <sched.h>

#include <cstddef>
#include <optional>
#include <string>

namespace meshrun {

// The node that has all of `cores`; where they lie on several nodes, the one of `current`, where
// the caller runs. Absent: not to be told. `nodes`: where Linux lists them.
std::optional<int> numa_node_of(const cpu_set_t& cores, int current,
                                const std::string& nodes = "/sys/devices/system/node");

// Of the calling thread. Absent also where its memory has a policy already (numactl), which holds.
std::optional<int> own_numa_node();

// Pages of [begin, begin + bytes), a mapping, lie on this node if it has room, whichever process
// writes them first. False: the kernel does not do it.
bool prefer_numa_node(void* begin, size_t bytes, int node);

}  // namespace meshrun
