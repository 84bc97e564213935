#include "parallel/base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

#include "core/os/core_set.h"

namespace meshrun {
namespace {

namespace fs = std::filesystem;

constexpr int kMostNodes = 1024;
constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;

// Cores of each node that has some, in the order of the nodes' numbers.
std::map<int, cpu_set_t> cores_of_nodes(const std::string& nodes) {
  constexpr std::string_view kPrefix = "node";
  std::map<int, cpu_set_t> found;
  std::error_code error;
  for (fs::directory_iterator entry(nodes, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(kPrefix)) continue;
    int node = 0;
    const char* const last = name.data() + name.size();
    const auto [parsed, problem] = std::from_chars(name.data() + kPrefix.size(), last, node);
    std::string list;
    std::ifstream file(entry->path() / "cpulist");
    if (problem != std::errc() || parsed != last || !std::getline(file, list)) continue;
    const auto numbers = os::ParseCoreSet(list);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (const int core : numbers.value_or(os::CoreSet())) {
      if (core < CPU_SETSIZE) CPU_SET(static_cast<size_t>(core), &cores);
    }
    if (CPU_COUNT(&cores) > 0) found[node] = cores;
  }
  return found;
}

}  // namespace

std::vector<int> numa_nodes(const std::string& nodes) {
  std::vector<int> numbers;
  for (const auto& [node, cores] : cores_of_nodes(nodes)) numbers.push_back(node);
  return numbers;
}

std::optional<int> numa_node_of(const cpu_set_t& cores, const std::string& nodes) {
  if (CPU_COUNT(&cores) == 0) return std::nullopt;
  for (const auto& [node, here] : cores_of_nodes(nodes)) {
    cpu_set_t both;
    CPU_AND(&both, &here, &cores);
    if (CPU_EQUAL(&both, &cores)) return node;
  }
  return std::nullopt;
}

std::optional<int> own_numa_node() {
  int mode = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) != 0 || mode != MPOL_DEFAULT) {
    return std::nullopt;
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return std::nullopt;
  return numa_node_of(cores);
}

bool prefer_numa_node(void* begin, size_t bytes, int node) {
  if (node < 0 || node >= kMostNodes) return false;
  unsigned long nodes[kMostNodes / kBits] = {};
  nodes[node / kBits] = 1ul << (node % kBits);
  // The kernel reads one bit less than it is told.
  return syscall(SYS_mbind, begin, bytes, MPOL_PREFERRED, nodes, kMostNodes + 1, 0) == 0;
}

}  // namespace meshrun
