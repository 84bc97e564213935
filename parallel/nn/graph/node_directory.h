// Which rank owns each node of a graph, kept in blocks of consecutive ids: a rank that meets a node
// asks the rank whose block has it. Internal to partition_graph().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel/nn/graph/list_exchange.h"

namespace meshrun::detail {

// A stable grouping of numbered records by rank.
struct Routes {
  std::vector<int64_t> counts;  // by rank
  std::vector<int64_t> order;   // record numbers, rank after rank
};
Routes routes_to(std::span<const int64_t> ranks, int world);

class NodeDirectory {
 public:
  // Collective. `blocks`: where each rank's block begins, and the end of the last one. `owners`:
  // the owner of each node of this rank's block.
  NodeDirectory(std::vector<int64_t> blocks, std::vector<int64_t> owners, ListExchange& exchange);

  // The rank whose block has the node.
  int64_t block_of(int64_t node) const;
  // Owner of a node of this rank's block, and the node's place among the owner's nodes.
  int64_t owner(int64_t node) const { return owners_[at(node)]; }
  int64_t place(int64_t node) const { return places_[at(node)]; }

  // The nodes that this rank owns, ascending.
  const std::vector<int64_t>& own_nodes() const { return own_nodes_; }
  const std::vector<int64_t>& num_nodes_of_ranks() const { return num_nodes_of_ranks_; }

  // Owner and place of each of `nodes`, which ascend: [owner, place, owner, place, ...].
  // Collective.
  std::vector<int64_t> ask(std::span<const int64_t> nodes, ListExchange& exchange) const;

 private:
  size_t at(int64_t node) const { return static_cast<size_t>(node - begin_); }

  std::vector<int64_t> blocks_;
  int64_t begin_ = 0;
  std::vector<int64_t> owners_;
  std::vector<int64_t> places_;
  std::vector<int64_t> own_nodes_;
  std::vector<int64_t> num_nodes_of_ranks_;
};

}  // namespace meshrun::detail
