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

std::vector<int> members_at_place(const NodeMembers& nodes, size_t place) {
  std::vector<int> ranks;
  for (const std::vector<int>& members : nodes) {
    if (place < members.size()) ranks.push_back(members[place]);
  }
  return ranks;
}

size_t fewest_members(const NodeMembers& nodes) {
  size_t fewest = nodes.empty() ? 0 : nodes.front().size();
  for (const std::vector<int>& members : nodes) fewest = std::min(fewest, members.size());
  return fewest;
}

}  // namespace meshrun::bagua
