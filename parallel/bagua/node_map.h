// Which members of a group share a node. Pure, without LibTorch.
//
//   nodes {0, 0, 1, 1, 1}, members {1, 2, 4}  ->  {{1}, {2, 4}}
//
// Members are world ranks; a node's are in the group's order, and nodes are in the order of their
// first members. So every rank that knows the same map derives the same groups, and nobody has to
// be asked.
#pragma once

#include <cstddef>
#include <vector>

namespace meshrun::bagua {

using NodeMembers = std::vector<std::vector<int>>;

// `node_of_rank`: by world rank.
NodeMembers members_by_node(const std::vector<int>& members, const std::vector<int>& node_of_rank);

// Those on the node of `rank`; empty where it is no member.
std::vector<int> members_beside(const NodeMembers& nodes, int rank);

// The members at `place` on their nodes, one per node, of the nodes that have as many; place 0 are
// the nodes' leaders.
std::vector<int> members_at_place(const NodeMembers& nodes, size_t place);

size_t fewest_members(const NodeMembers& nodes);

}  // namespace meshrun::bagua
