// Which members of a group share a node. Pure, without LibTorch.
//
//   nodes {0, 0, 1, 1, 1}, members {1, 2, 4}  ->  {{1}, {2, 4}}
//
// Members are world ranks. A node's members are in the group's order, and nodes are in the order of
// their first members. So every rank that knows the map derives the same groups without
// communication.
#pragma once

#include <cstddef>
#include <vector>

namespace meshrun::bagua {

using NodeMembers = std::vector<std::vector<int>>;

// `node_of_rank`: by world rank.
NodeMembers members_by_node(const std::vector<int>& members, const std::vector<int>& node_of_rank);

// The members on the node of `rank`; empty if `rank` is not a member.
std::vector<int> members_beside(const NodeMembers& nodes, int rank);

// The first member of each node.
std::vector<int> leaders_of(const NodeMembers& nodes);

}  // namespace meshrun::bagua
