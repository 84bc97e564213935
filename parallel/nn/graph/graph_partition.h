// How a graph is cut into parts, one per rank: each rank owns nodes, and all edges that arrive at
// its destination nodes. Made by all ranks together, none of which needs the whole graph. Pure,
// without LibTorch.
//
//   partition     the nodes that a rank owns, by ascending id; source and destination nodes may be
//                 the same nodes or two kinds
//   local graph   the rank's destination nodes, the edges that arrive at them, and the source nodes
//                 that these edges leave: its own and other ranks' (the halo)
//
// Order, which is that of physicsnemo's GraphPartition: edges by destination, then by their number
// in the whole list; local source nodes by owner, then by id.
//
// Isolated nodes, self loops, duplicate edges and empty parts are kept. Memory and time per rank:
// O(edges it gave + its part + its halo + world^2), where each rank gave about its share. With
// Kind::kMetis rank 0 holds the whole graph for a while.
//
// Errors: std::invalid_argument, with the same sentence on every rank; those of the exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/nn/graph/list_exchange.h"

namespace meshrun {

// To which rank each node goes. All ranks give the same kind.
struct NodeSplit {
  enum class Kind {
    kConsecutive,  // rank r owns sizes[r] consecutive ids; without sizes as compute_split_shapes
    kMapped,       // `owners`
    kMetis,        // parts that METIS chooses, of both kinds of nodes at once
  };
  Kind kind = Kind::kConsecutive;
  std::vector<int64_t> sizes;
  // The owning rank of each node of a block of consecutive ids: this rank's block follows those of
  // lower ranks, and all blocks cover all nodes. Any block sizes.
  std::vector<int64_t> owners;
};

// What one rank knows of a graph before it is cut.
struct GraphInput {
  // What is wrong with this rank's input; empty: nothing. It becomes the error of all ranks.
  std::string problem;
  // Edge e goes from node src[e] to node dst[e]. The whole list is the ranks' lists in rank order.
  std::span<const int64_t> src;
  std::span<const int64_t> dst;
  // Absent on all ranks: the largest id + 1. Ranks that give them agree.
  std::optional<int64_t> num_src_nodes;
  std::optional<int64_t> num_dst_nodes;
  // Source and destination nodes are two kinds; else the members for dst are not read.
  bool is_bipartite = false;
  NodeSplit src_split;
  NodeSplit dst_split;
};

// One rank's part of a graph. Members are named as in physicsnemo's GraphPartition.
struct GraphPartition {
  int partition_rank = 0;
  int partition_size = 1;
  bool is_bipartite = false;
  // Sizes of the whole graph.
  int64_t num_src_nodes = 0;
  int64_t num_dst_nodes = 0;
  int64_t num_edges = 0;

  // The local graph: the edges that arrive at the own destination node d leave the local source
  // nodes local_indices[local_offsets[d]] up to local_indices[local_offsets[d + 1] - 1].
  std::vector<int64_t> local_offsets;
  std::vector<int64_t> local_indices;

  // sizes[i][j]: source nodes of rank i in rank j's local graph. The same on all ranks.
  std::vector<std::vector<int64_t>> sizes;
  // [j]: places, in this rank's partition, of the source nodes that rank j's local graph has.
  std::vector<std::vector<int64_t>> scatter_indices;

  // By rank; the same on all ranks.
  std::vector<int64_t> num_src_nodes_in_each_partition;
  std::vector<int64_t> num_dst_nodes_in_each_partition;
  std::vector<int64_t> num_indices_in_each_partition;
  // Rank r's ids are consecutive and follow those of rank r - 1: parts one after another are in the
  // order of ids. The same on all ranks.
  bool src_is_consecutive = true;
  bool dst_is_consecutive = true;

  // The ids of what this rank owns, ascending for nodes, and of its local source nodes. An edge's
  // id is its place in the whole list.
  std::vector<int64_t> map_partitioned_src_ids_to_global;
  std::vector<int64_t> map_partitioned_dst_ids_to_global;
  std::vector<int64_t> map_partitioned_edge_ids_to_global;
  std::vector<int64_t> map_local_src_ids_to_global;

  int64_t num_local_src_nodes() const {
    return static_cast<int64_t>(map_local_src_ids_to_global.size());
  }
  int64_t num_local_dst_nodes() const { return static_cast<int64_t>(local_offsets.size()) - 1; }
  int64_t num_local_indices() const { return static_cast<int64_t>(local_indices.size()); }
};

// Collective over the exchange's ranks.
GraphPartition partition_graph(const GraphInput& input, ListExchange& exchange);

// The same sentence on every rank of the exchange: that of the lowest rank with a problem; empty if
// no rank has one. Collective.
std::string problem_of_any_rank(const std::string& problem, ListExchange& exchange);

}  // namespace meshrun
