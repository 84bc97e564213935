// How the cores of this host lie together, as Linux lists it under /sys.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/os/core_set.h"

namespace meshrun::worker {

struct CorePlace {
  int numa_node = 0;
  int socket = 0;
  // The lowest logical core of the same physical one, and of those that share the largest cache.
  int physical = 0;
  int cache = 0;
};

// By the number of the logical core.
using CoreTopology = std::map<int, CorePlace>;

// Where Linux does not say, there is one NUMA node and one socket, each core is a physical one, and
// the cores of a node share a cache. `system`: where Linux lists cores and nodes.
CoreTopology ReadCoreTopology(const os::CoreSet& cores,
                              const std::string& system = "/sys/devices/system");

// NUMA node of a PCI device such as "0000:dc:00.0". Absent where Linux does not know it.
std::optional<int> NumaNodeOfDevice(const std::string& address,
                                    const std::string& devices = "/sys/bus/pci/devices");

}  // namespace meshrun::worker
