#include "parallel/checkpoint/snapshot_keepers.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace meshrun {

std::vector<int> snapshot_keepers(const std::vector<int>& nodes) {
  const size_t ranks = nodes.size();
  std::map<int, size_t> sizes;
  for (const int node : nodes) ++sizes[node];
  size_t largest = 0;
  for (const auto& [node, size] : sizes) largest = std::max(largest, size);
  // In the order of the hosts, a step as long as the largest host leaves each host.
  std::vector<int> ordered(ranks);
  std::iota(ordered.begin(), ordered.end(), 0);
  std::ranges::stable_sort(ordered, {}, [&](int rank) { return nodes[static_cast<size_t>(rank)]; });
  const size_t step = largest < ranks ? largest : 1;
  std::vector<int> keepers(ranks);
  for (size_t place = 0; place < ranks; ++place) {
    keepers[static_cast<size_t>(ordered[place])] = ordered[(place + step) % ranks];
  }
  return keepers;
}

}  // namespace meshrun
