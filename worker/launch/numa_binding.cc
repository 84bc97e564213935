#include "worker/launch/numa_binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/text.h"

namespace meshrun::worker {
namespace {

// What has a place on the host: a GPU, or a rank without one.
struct Placed {
  bool is_gpu = false;
  int numa_node = 0;
  // Its place among the devices of its node, and how many there are.
  size_t index = 0;
  size_t count = 0;
};

std::set<int> NodesOf(const CoreTopology& topology) {
  std::set<int> nodes;
  for (const auto& [_, place] : topology) nodes.insert(place.numa_node);
  return nodes;
}

void CountByNode(std::vector<Placed*> devices) {
  std::map<int, size_t> count;
  for (Placed* device : devices) device->index = count[device->numa_node]++;
  for (Placed* device : devices) device->count = count[device->numa_node];
}

// By the GPU's index. Linux does not number the node of a host that has one.
std::map<uint32_t, Placed> PlacesOf(const std::vector<v1::Gpu>& gpus, int only_node) {
  std::map<uint32_t, Placed> devices;
  for (const v1::Gpu& gpu : gpus) {
    const int node = gpu.has_numa_node() ? static_cast<int>(gpu.numa_node()) : only_node;
    devices[gpu.index()] = {.is_gpu = true, .numa_node = node};
  }
  std::vector<Placed*> in_order;
  for (auto& [_, device] : devices) in_order.push_back(&device);
  CountByNode(in_order);
  return devices;
}

// One for each rank: neighbours are on one node.
std::vector<Placed> SpreadRanks(size_t ranks, const std::set<int>& nodes) {
  std::vector<Placed> devices(ranks);
  std::vector<Placed*> in_order;
  const std::vector<int> numbers(nodes.begin(), nodes.end());
  for (size_t i = 0; i < ranks; ++i) {
    devices[i].numa_node = numbers[i * numbers.size() / ranks];
    in_order.push_back(&devices[i]);
  }
  CountByNode(in_order);
  return devices;
}

// Cores of `here` in groups of those that have the same `of`, by that number.
std::vector<os::CoreSet> Grouped(const CoreTopology& here, int CorePlace::*of) {
  std::map<int, os::CoreSet> groups;
  for (const auto& [core, place] : here) groups[place.*of].push_back(core);
  std::vector<os::CoreSet> out;
  for (auto& [_, cores] : groups) out.push_back(std::move(cores));
  return out;
}

// The part of `device`, of all those on its node. Fewer physical cores than devices: empty.
os::CoreSet OwnPart(const CoreTopology& here, const Placed& device) {
  const std::vector<os::CoreSet> physical = Grouped(here, &CorePlace::physical);
  os::CoreSet cores;
  if (physical.size() < device.count) return cores;
  const size_t each = physical.size() / device.count;
  const size_t more = physical.size() % device.count;
  const size_t begin = device.index * each + std::min(device.index, more);
  const size_t end = begin + each + (device.index < more ? 1 : 0);
  for (size_t i = begin; i < end; ++i) {
    cores.insert(cores.end(), physical[i].begin(), physical[i].end());
  }
  return cores;
}

// Caches of which more cores may be used come first.
os::CoreSet OwnCache(const CoreTopology& here, const Placed& device) {
  std::vector<os::CoreSet> caches = Grouped(here, &CorePlace::cache);
  std::stable_sort(caches.begin(), caches.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return caches[device.index % caches.size()];
}

absl::StatusOr<os::CoreSet> CoresNear(v1::NumaBinding binding, const CoreTopology& topology,
                                      const Placed& device) {
  CoreTopology here;
  for (const auto& [core, place] : topology) {
    if (place.numa_node == device.numa_node) here[core] = place;
  }
  if (here.empty()) {
    os::CoreSet all;
    for (const auto& [core, _] : topology) all.push_back(core);
    return absl::InvalidArgumentError(
        fmt::format("its GPU is on NUMA node {}, and the cores that ranks may use here ({}) are on "
                    "others",
                    device.numa_node, FormatRanks(all)));
  }
  os::CoreSet cores;
  switch (binding) {
    case v1::NUMA_BINDING_NODE:
      for (const auto& [core, _] : here) cores.push_back(core);
      return cores;
    case v1::NUMA_BINDING_SOCKET:
      for (const auto& [core, place] : topology) {
        if (place.socket == here.begin()->second.socket) cores.push_back(core);
      }
      return cores;
    case v1::NUMA_BINDING_EXCLUSIVE:
      cores = OwnPart(here, device);
      if (!cores.empty()) return cores;
      return absl::InvalidArgumentError(fmt::format(
          "{} {} share the physical cores of NUMA node {}, of which ranks may use {} here: take "
          "--numa-binding node, or fewer ranks",
          device.count, device.is_gpu ? "GPUs" : "ranks", device.numa_node,
          Grouped(here, &CorePlace::physical).size()));
    case v1::NUMA_BINDING_CORE_COMPLEX:
      return OwnCache(here, device);
    default:
      return absl::InvalidArgumentError(
          fmt::format("this worker does not know its way of binding ({}): it is older than the "
                      "client",
                      static_cast<int>(binding)));
  }
}

}  // namespace

absl::StatusOr<std::vector<os::CoreSet>> BindRanks(v1::NumaBinding binding,
                                                   const CoreTopology& topology,
                                                   const std::vector<v1::Gpu>& gpus,
                                                   const std::vector<v1::RankAssignment>& ranks) {
  const std::set<int> nodes = NodesOf(topology);
  if (nodes.empty()) {
    return absl::InvalidArgumentError("--numa-binding: Linux does not tell this worker its cores");
  }
  const std::map<uint32_t, Placed> of_gpu = PlacesOf(gpus, *nodes.begin());
  const std::vector<Placed> of_rank = SpreadRanks(ranks.size(), nodes);
  std::vector<os::CoreSet> bound;
  for (size_t i = 0; i < ranks.size(); ++i) {
    std::vector<Placed> own;
    for (const uint32_t gpu : ranks[i].gpus()) {
      if (const auto found = of_gpu.find(gpu); found != of_gpu.end()) own.push_back(found->second);
    }
    if (own.empty()) own.push_back(of_rank[i]);
    std::set<int> cores;
    for (const Placed& device : own) {
      const auto near = CoresNear(binding, topology, device);
      if (!near.ok()) {
        return absl::InvalidArgumentError(fmt::format(
            "--numa-binding: rank {}: {}", ranks[i].rank(), std::string(near.status().message())));
      }
      cores.insert(near->begin(), near->end());
    }
    bound.emplace_back(cores.begin(), cores.end());
  }
  return bound;
}

}  // namespace meshrun::worker
