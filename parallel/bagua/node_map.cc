#include "parallel/bagua/node_map.h"

#include <algorithm>
#include <map>

namespace meshrun::bagua {

NodeMembers members_by_node(const std::vector<int>& members, const std::vector<int>& node_of_rank) {
  NodeMembers nodes;
  std::map<int, size_t> place_of_node;
  for (const int rank : members) {
    const int node = node_of_rank[static_cast<size_t>(rank)];
    const auto [found, is_new] = place_of_node.emplace(node, nodes.size());
    if (is_new) nodes.emplace_back();
    nodes[found->second].push_back(rank);
  }
  return nodes;
}

std::vector<int> members_beside(const NodeMembers& nodes, int rank) {
  for (const std::vector<int>& members : nodes) {
    if (std::find(members.begin(), members.end(), rank) != members.end()) return members;
  }
  return {};
}

std::vector<int> leaders_of(const NodeMembers& nodes) {
  std::vector<int> ranks;
  for (const std::vector<int>& members : nodes) ranks.push_back(members.front());
  return ranks;
}

}  // namespace meshrun::bagua
