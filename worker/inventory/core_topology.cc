#include "worker/inventory/core_topology.h"

#include <filesystem>
#include <fstream>
#include <string_view>

#include "core/parse_integer.h"

namespace meshrun::worker {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Entries of `directory` that are `prefix` and a number, by that number.
std::map<int, fs::path> Numbered(const fs::path& directory, std::string_view prefix) {
  std::map<int, fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(prefix)) continue;
    if (const auto number = ParseInteger<int>(std::string_view(name).substr(prefix.size())))
      found[*number] = entry->path();
  }
  return found;
}

std::optional<int> LowestOf(const fs::path& list) {
  const auto cores = os::ParseCoreSet(FirstLine(list));
  return cores && !cores->empty() ? std::optional(cores->front()) : std::nullopt;
}

// The lowest core of those that share the core's cache of the highest level.
std::optional<int> LargestCache(const fs::path& core) {
  int highest = 0;
  std::optional<int> lowest;
  for (const auto& [_, cache] : Numbered(core / "cache", "index")) {
    const int level = ParseInteger<int>(FirstLine(cache / "level")).value_or(0);
    if (level <= highest || FirstLine(cache / "type") == "Instruction") continue;
    highest = level;
    lowest = LowestOf(cache / "shared_cpu_list");
  }
  return lowest;
}

}  // namespace

CoreTopology ReadCoreTopology(const os::CoreSet& cores, const std::string& system) {
  std::map<int, int> node_of_core;
  for (const auto& [node, path] : Numbered(fs::path(system) / "node", "node")) {
    for (const int core : os::ParseCoreSet(FirstLine(path / "cpulist")).value_or(os::CoreSet())) {
      node_of_core[core] = node;
    }
  }
  CoreTopology topology;
  std::map<int, int> first_of_node;
  for (const int core : cores) {
    const fs::path path = fs::path(system) / "cpu" / ("cpu" + std::to_string(core));
    CorePlace& place = topology[core];
    if (const auto node = node_of_core.find(core); node != node_of_core.end()) {
      place.numa_node = node->second;
    }
    place.socket = ParseInteger<int>(FirstLine(path / "topology/physical_package_id")).value_or(0);
    place.physical = LowestOf(path / "topology/thread_siblings_list").value_or(core);
    const int first = first_of_node.try_emplace(place.numa_node, core).first->second;
    place.cache = LargestCache(path).value_or(first);
  }
  return topology;
}

std::optional<int> NumaNodeOfDevice(const std::string& address, const std::string& devices) {
  const auto node = ParseInteger<int>(FirstLine(fs::path(devices) / address / "numa_node"));
  return node && *node >= 0 ? node : std::nullopt;
}

}  // namespace meshrun::worker
