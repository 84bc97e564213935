// What a network namespace has sent, for rank programs that count what crosses between hosts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/manager/distributed_manager.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

// Sent through `interface` so far; -1 if there is none of that name.
inline int64_t bytes_sent(const std::string& interface) {
  std::ifstream table("/proc/net/dev");
  std::string line;
  while (std::getline(table, line)) {
    std::replace(line.begin(), line.end(), ':', ' ');
    std::istringstream words(line);
    std::string name;
    int64_t received = 0, skipped = 0, sent = 0;
    words >> name >> received;
    for (int i = 0; i < 7; ++i) words >> skipped;
    words >> sent;
    if (name == interface) return sent;
  }
  return -1;
}

// By all hosts of the world. Collective.
inline int64_t bytes_sent_by_all(DistributedManager& manager, const std::string& interface) {
  const std::vector<int>& nodes = manager.node_ranks();
  const int rank = manager.rank();
  const bool is_first_of_host = std::ranges::find(nodes, nodes[rank]) == nodes.begin() + rank;
  std::vector<at::Tensor> sent = {at::tensor({is_first_of_host ? bytes_sent(interface) : 0})};
  manager.group()->allreduce(sent)->wait();
  return sent[0].item<int64_t>();
}

inline int count_hosts(const DistributedManager& manager) {
  const std::vector<int>& nodes = manager.node_ranks();
  return 1 + *std::max_element(nodes.begin(), nodes.end());
}

}  // namespace meshrun
