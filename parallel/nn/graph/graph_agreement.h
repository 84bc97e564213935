// What the ranks must know of each other's input before they cut a graph. Internal to
// partition_graph().
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/nn/graph/graph_partition.h"

namespace meshrun::detail {

struct GraphAgreement {
  int64_t num_src_nodes = 0;
  int64_t num_dst_nodes = 0;
  int64_t num_edges = 0;
  int64_t first_edge = 0;  // this rank's first edge in the whole list
  // Where each rank's block of owners begins, and the end of the last: of kMapped splits.
  std::vector<int64_t> src_blocks;
  std::vector<int64_t> dst_blocks;
};

// Collective. Raises std::invalid_argument, the same on all ranks.
GraphAgreement agree_on_graph(const GraphInput& input, ListExchange& exchange);

}  // namespace meshrun::detail
