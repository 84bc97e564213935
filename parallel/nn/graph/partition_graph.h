// Cuts a graph into parts, one per rank of a group; no rank needs to hold the whole graph.
//
//   GraphEdges edges{.src = src, .dst = dst, .num_src_nodes = num_nodes};
//   DistributedGraph graph(partition_graph_nodewise(edges, "graph_parallel"), "graph_parallel");
//
// What a rank passes, by GraphEdges::held:
//
//   kPart      its part of the edge list, of any length: the whole list is the parts in rank order.
//              Rank 0 may have all of it. Coordinates and mappings: those of a block of consecutive
//              ids, likewise
//   kWhole     all of it, the same on every rank, which takes its share
//
// The parts (graph_partition.h) do not depend on how the list is held. Isolated nodes, self loops,
// duplicate edges and empty parts are kept; without num_src_nodes the source nodes end with the
// largest id, as in physicsnemo.
//
// Collective; the lists travel through all_to_all_v. Threads: as for collectives.
// Errors: GraphError, the same sentence on every rank of the group, for input that is wrong on any
// rank; those of GroupArgument and of collectives.
//
// Correspond to the functions of the same names in physicsnemo.nn.module.gnn_layers, where every
// rank holds the whole graph and cuts the parts of all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/graph/coordinate_boxes.h"
#include "parallel/nn/graph/graph_partition.h"

namespace meshrun {

// A graph cannot be cut, or a distributed graph cannot be used, as asked.
class GraphError : public c10::ValueError {
  using ValueError::ValueError;
};

enum class Held { kPart, kWhole };

struct GraphEdges {
  // Edge e goes from node src[e] to node dst[e]: 1-D, int64 or int32, on any device. Undefined: no
  // edges.
  at::Tensor src = {};
  at::Tensor dst = {};
  // Absent on all ranks: the largest id + 1. num_dst_nodes is read for bipartite graphs alone.
  std::optional<IntArgument> num_src_nodes = std::nullopt;
  std::optional<IntArgument> num_dst_nodes = std::nullopt;
  // Source and destination nodes are two kinds, each with ids from 0.
  BoolArgument is_bipartite = false;
  Held held = Held::kPart;
};

// From CSC form: the edges that arrive at node d leave indices[offsets[d]] up to
// indices[offsets[d + 1] - 1]. num_dst_nodes is that of the offsets. With kPart the offsets and
// indices are one rank's, and the others pass undefined tensors. An edge's id is its place in
// `indices`. What is wrong is an error of partition_graph_...(), on all ranks.
GraphEdges edges_from_csc(const at::Tensor& offsets, const at::Tensor& indices,
                          std::optional<IntArgument> num_src_nodes, BoolArgument is_bipartite,
                          Held held = Held::kPart);

// Rank r owns consecutive ids: src_sizes[r] of them, or as compute_split_shapes() where the sizes
// are empty. The dst arguments of this and the next functions are for bipartite graphs.
GraphPartition partition_graph_nodewise(const GraphEdges& edges, const GroupArgument& group = {});
GraphPartition partition_graph_nodewise(const GraphEdges& edges, std::vector<int64_t> src_sizes,
                                        std::vector<int64_t> dst_sizes,
                                        const GroupArgument& group = {});

// Coordinates: [nodes, dimensions], f32 or f64; bounds are rounded to the coordinates' dtype.
GraphPartition partition_graph_by_coordinate_bbox(const GraphEdges& edges,
                                                  const at::Tensor& src_coordinates,
                                                  const at::Tensor& dst_coordinates,
                                                  const CoordinateBoxes& boxes,
                                                  const GroupArgument& group = {});

// mapping_...[i]: the owning rank of a node, int64 or int32.
GraphPartition partition_graph_with_id_mapping(const GraphEdges& edges,
                                               const at::Tensor& mapping_src_ids_to_ranks,
                                               const at::Tensor& mapping_dst_ids_to_ranks,
                                               const GroupArgument& group = {});

// About as many nodes on each rank, and few edges between ranks. METIS is serial: rank 0 holds the
// whole edge list for a while. The parts are the same in every run.
GraphPartition partition_graph_by_metis(const GraphEdges& edges, const GroupArgument& group = {});

}  // namespace meshrun
