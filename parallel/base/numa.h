// On which NUMA node memory of this process should lie. Threads: any. No errors: without an answer
// the kernel puts each page on the node of the thread that writes it first.
#pragma once

#include <sched.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace meshrun {

// Numbers of the nodes that have cores, ascending. They may have gaps: a board can have nodes 0 and
// 8. `nodes`: where Linux lists them.
std::vector<int> numa_nodes(const std::string& nodes = "/sys/devices/system/node");

// The node that has all of `cores`. Absent where they lie on several: the process moves between
// these nodes, and the one where it runs now says nothing of where it will read.
std::optional<int> numa_node_of(const cpu_set_t& cores,
                                const std::string& nodes = "/sys/devices/system/node");

// Node of the calling thread's cores, as numa_node_of() gives it. Absent also if a memory policy is
// set already (numactl): that policy holds.
std::optional<int> own_numa_node();

// Pages of [begin, begin + bytes), a mapping, lie on this node if it has room, whichever process
// writes them first. False: the kernel does not do it.
bool prefer_numa_node(void* begin, size_t bytes, int node);

}  // namespace meshrun
