// A graph whose nodes and edges are spread over the ranks of a group, and the exchanges that
// message passing on it needs.
//
//   DistributedGraph graph(partition_graph_nodewise(edges, "graph_parallel"), "graph_parallel");
//   at::Tensor own = graph.get_src_node_features_in_partition(features, /*scatter_features=*/true);
//   at::Tensor halo = graph.get_src_node_features_in_local_graph(own);
//   at::Tensor sums = graph.destinations().sum(graph.sources().gather(halo));  // of neighbours
//   at::Tensor all = graph.get_global_dst_node_features(sums);
//
// Features are [nodes or edges, ...], any dtype that the backend moves, on the graph's device. All
// functions are differentiable, to any order; gradients equal those of the whole graph on one rank.
//
//   ..._in_partition      rows of what this rank owns, from features of the whole graph
//   ..._in_local_graph    of what the local graph has: for source nodes that is a halo exchange
//   get_global_...        of the whole graph, in the order of ids
//
// graph_partition.h says what a partition and a local graph are. Messages are summed in the order
// of edge ids, so a forward pass adds in the same order for any number of ranks.
//
// Threads: one at a time. Collective, on all ranks in the same order: the constructor, and all
// functions that are not said to be local; backward passes run on all ranks or on none (tie.h).
// Errors: GraphError, from the constructor on every rank, from local functions on this rank alone;
// all others as for collectives, on every rank (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.nn.module.gnn_layers.DistributedGraph.
#pragma once

#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/graph/graph_partition.h"
#include "parallel/nn/graph/partition_graph.h"
#include "parallel/nn/graph/row_map.h"

namespace meshrun {

class DistributedGraph {
 public:
  // `partition`: of this rank of the group.
  explicit DistributedGraph(GraphPartition partition, const GroupArgument& group = {},
                            c10::Device device = c10::kCPU);

  const GraphPartition& partition() const;
  const GroupArgument::Handle& group() const;
  c10::Device device() const;

  // Features of what this rank owns. Without scatter_features every rank passes those of the whole
  // graph and takes its rows, locally; the gradient has zeros elsewhere. With it those of rank
  // src_rank are sent to their owners; other ranks pass a template, as to scatter_v().
  at::Tensor get_src_node_features_in_partition(const at::Tensor& global_node_features,
                                                BoolArgument scatter_features = false,
                                                IntArgument src_rank = 0) const;
  at::Tensor get_dst_node_features_in_partition(const at::Tensor& global_node_features,
                                                BoolArgument scatter_features = false,
                                                IntArgument src_rank = 0) const;
  at::Tensor get_edge_features_in_partition(const at::Tensor& global_edge_features,
                                            BoolArgument scatter_features = false,
                                            IntArgument src_rank = 0) const;

  // From this rank's partition to its local graph: [num_local_src_nodes, ...], rows as
  // partition().map_local_src_ids_to_global. Backward: cotangents are added at the owner, in a
  // fixed order.
  at::Tensor get_src_node_features_in_local_graph(
      const at::Tensor& partitioned_src_node_features) const;
  // The same nodes and edges are in both: local, returns its argument.
  at::Tensor get_dst_node_features_in_local_graph(
      const at::Tensor& partitioned_dst_node_features) const;
  at::Tensor get_edge_features_in_local_graph(const at::Tensor& partitioned_edge_features) const;

  // Features of the whole graph on every rank, or on dst_rank alone; the others then get a tensor
  // with no rows, as from gather_v(). The first call for a rank and a kind of nodes also gathers
  // their ids there.
  at::Tensor get_global_src_node_features(const at::Tensor& partitioned_node_features,
                                          BoolArgument get_on_all_ranks = true,
                                          IntArgument dst_rank = 0) const;
  at::Tensor get_global_dst_node_features(const at::Tensor& partitioned_node_features,
                                          BoolArgument get_on_all_ranks = true,
                                          IntArgument dst_rank = 0) const;
  at::Tensor get_global_edge_features(const at::Tensor& partitioned_edge_features,
                                      BoolArgument get_on_all_ranks = true,
                                      IntArgument dst_rank = 0) const;

  // The two ends of the local graph's edges: rows of source nodes in the local graph, and of
  // destination nodes in the partition.
  const RowMap& sources() const;
  const RowMap& destinations() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace meshrun
