#include "parallel/base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>

#include "fmt/format.h"

namespace meshrun {
namespace {

constexpr int kMostNodes = 1024;
constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;

// "0-3,8,10-11".
cpu_set_t cores_of_list(const std::string& list) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const char* text = list.c_str();
  while (*text != '\0') {
    char* end = nullptr;
    const long first = std::strtol(text, &end, 10);
    if (end == text) break;
    long last = first;
    if (*end == '-') last = std::strtol(end + 1, &end, 10);
    for (long core = first; core <= last && core < CPU_SETSIZE; ++core) {
      CPU_SET(static_cast<size_t>(core), &cores);
    }
    text = *end == ',' ? end + 1 : end;
    if (*end != ',') break;
  }
  return cores;
}

}  // namespace

std::optional<int> numa_node_of(const cpu_set_t& cores, int current, const std::string& nodes) {
  std::optional<int> of_current;
  for (int node = 0; node < kMostNodes; ++node) {
    std::ifstream file(fmt::format("{}/node{}/cpulist", nodes, node));
    std::string list;
    if (!std::getline(file, list)) {
      // Their numbers may have gaps, at most those of nodes without a core.
      if (node > 0 && !std::ifstream(fmt::format("{}/node{}/cpulist", nodes, node + 1))) break;
      continue;
    }
    const cpu_set_t here = cores_of_list(list);
    cpu_set_t both;
    CPU_AND(&both, &here, &cores);
    if (CPU_COUNT(&both) > 0 && CPU_EQUAL(&both, &cores)) return node;
    if (current >= 0 && CPU_ISSET(static_cast<size_t>(current), &here)) of_current = node;
  }
  return of_current;
}

std::optional<int> own_numa_node() {
  int mode = MPOL_DEFAULT;
  if (syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) != 0 || mode != MPOL_DEFAULT) {
    return std::nullopt;
  }
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return std::nullopt;
  return numa_node_of(cores, sched_getcpu());
}

bool prefer_numa_node(void* begin, size_t bytes, int node) {
  if (node < 0 || node >= kMostNodes) return false;
  unsigned long nodes[kMostNodes / kBits] = {};
  nodes[node / kBits] = 1ul << (node % kBits);
  // The kernel reads one bit less than it is told.
  return syscall(SYS_mbind, begin, bytes, MPOL_PREFERRED, nodes, kMostNodes + 1, 0) == 0;
}

}  // namespace meshrun
