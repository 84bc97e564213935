#include "parallel/nn/graph/partition_graph.h"

#include <ATen/ATen.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "parallel/base/split.h"
#include "parallel/nn/graph/group_exchange.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;

bool is_index(const Tensor& tensor) {
  return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
}

std::span<const int64_t> span_of(const Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

// A GraphInput and the memory that it refers to; collects what is wrong.
class Input {
 public:
  Input(const GraphEdges& edges, const GroupArgument& group)
      : group_(group.get()), is_whole_(edges.held == Held::kWhole) {
    input_.is_bipartite = edges.is_bipartite;
    if (edges.num_src_nodes) input_.num_src_nodes = *edges.num_src_nodes;
    if (edges.num_dst_nodes) input_.num_dst_nodes = *edges.num_dst_nodes;
    src_ = own_indices("src", edges.src);
    dst_ = own_indices("dst", edges.dst);
    input_.src = span_of(src_);
    input_.dst = span_of(dst_);
  }

  int world() const { return group_->getSize(); }
  GraphInput& operator*() { return input_; }
  GraphInput* operator->() { return &input_; }

  // The first problem is kept.
  void report(const std::string& problem) {
    if (input_.problem.empty()) input_.problem = problem;
  }

  // This rank's rows of what is held whole.
  Tensor own_rows(const Tensor& rows) const {
    if (!is_whole_) return rows;
    const SplitRange range = split_range(rows.size(0), world(), group_->getRank());
    return rows.narrow(0, range.begin, range.size());
  }

  // In host memory; empty where it is undefined or wrong.
  Tensor own_indices(const char* name, const Tensor& tensor) {
    const Tensor none = at::empty({0}, at::TensorOptions().dtype(at::kLong));
    if (!tensor.defined()) return none;
    if (tensor.dim() != 1 || !is_index(tensor)) {
      report(c10::str(name, " is a tensor of ", tensor.dtype(), " and shape ", tensor.sizes(),
                      "; one dimension of int64 or int32 is expected"));
      return none;
    }
    return own_rows(tensor).to(at::Device(at::kCPU), at::kLong).contiguous();
  }

  GraphPartition partition() {
    detail::GroupExchange exchange(group_);
    try {
      return partition_graph(input_, exchange);
    } catch (const std::invalid_argument& error) {
      throw GraphError(std::string("partition_graph: ") + error.what());
    }
  }

 private:
  const GroupArgument::Handle group_;
  const bool is_whole_;
  GraphInput input_;
  Tensor src_;
  Tensor dst_;
};

std::vector<int64_t> to_vector(const Tensor& tensor) {
  const auto span = span_of(tensor);
  return {span.begin(), span.end()};
}

CoordinateBoxes rounded_to_float(CoordinateBoxes boxes) {
  for (auto* bounds : {&boxes.min, &boxes.max}) {
    for (auto& box : *bounds) {
      for (auto& bound : box) {
        if (bound) bound = static_cast<double>(static_cast<float>(*bound));
      }
    }
  }
  return boxes;
}

NodeSplit split_by_boxes(const char* name, const Tensor& coordinates, const CoordinateBoxes& boxes,
                         Input& input) {
  NodeSplit split;
  split.kind = NodeSplit::Kind::kMapped;
  if (!coordinates.defined()) return split;
  const bool is_float = coordinates.scalar_type() == at::kFloat;
  if (coordinates.dim() != 2 || !(is_float || coordinates.scalar_type() == at::kDouble)) {
    input.report(c10::str(name, " is a tensor of ", coordinates.dtype(), " and shape ",
                          coordinates.sizes(),
                          "; [nodes, dimensions] of float32 or float64 is "
                          "expected"));
    return split;
  }
  const Tensor own = input.own_rows(coordinates).to(at::Device(at::kCPU), at::kDouble).contiguous();
  BoxOwners result =
      owners_in_boxes({own.const_data_ptr<double>(), static_cast<size_t>(own.numel())}, own.size(1),
                      is_float ? rounded_to_float(boxes) : boxes, input.world());
  input.report(result.problem);
  if (result.problem.empty()) split.owners = std::move(result.owners);
  return split;
}

}  // namespace

GraphEdges edges_from_csc(const Tensor& offsets, const Tensor& indices,
                          std::optional<IntArgument> num_src_nodes, BoolArgument is_bipartite,
                          Held held) {
  GraphEdges edges;
  edges.src = indices;
  edges.num_src_nodes = num_src_nodes;
  edges.is_bipartite = is_bipartite;
  edges.held = held;
  if (!offsets.defined()) return edges;
  const bool is_list = offsets.dim() == 1 && is_index(offsets) && offsets.numel() > 0;
  const Tensor degrees = is_list ? offsets.diff().to(at::kLong) : Tensor();
  if (!is_list || (degrees < 0).any().item<bool>() || offsets[0].item<int64_t>() != 0) {
    // For partition_graph() to refuse, on all ranks: not a list of ids.
    edges.dst = at::empty({0, 0}, at::TensorOptions().dtype(at::kLong));
    return edges;
  }
  edges.dst = at::arange(degrees.numel(), degrees.options()).repeat_interleave(degrees);
  if (is_bipartite) {
    edges.num_dst_nodes = degrees.numel();
  } else if (!num_src_nodes) {
    edges.num_src_nodes = degrees.numel();
  }
  return edges;
}

GraphPartition partition_graph_nodewise(const GraphEdges& edges, const GroupArgument& group) {
  return partition_graph_nodewise(edges, {}, {}, group);
}

GraphPartition partition_graph_nodewise(const GraphEdges& edges, std::vector<int64_t> src_sizes,
                                        std::vector<int64_t> dst_sizes,
                                        const GroupArgument& group) {
  Input input(edges, group);
  input->src_split.sizes = std::move(src_sizes);
  input->dst_split.sizes = std::move(dst_sizes);
  return input.partition();
}

GraphPartition partition_graph_by_coordinate_bbox(const GraphEdges& edges,
                                                  const Tensor& src_coordinates,
                                                  const Tensor& dst_coordinates,
                                                  const CoordinateBoxes& boxes,
                                                  const GroupArgument& group) {
  Input input(edges, group);
  input->src_split = split_by_boxes("src_coordinates", src_coordinates, boxes, input);
  if (edges.is_bipartite) {
    input->dst_split = split_by_boxes("dst_coordinates", dst_coordinates, boxes, input);
  }
  return input.partition();
}

GraphPartition partition_graph_with_id_mapping(const GraphEdges& edges,
                                               const Tensor& mapping_src_ids_to_ranks,
                                               const Tensor& mapping_dst_ids_to_ranks,
                                               const GroupArgument& group) {
  Input input(edges, group);
  const auto split_by = [&](const char* name, const Tensor& mapping) {
    NodeSplit split;
    split.kind = NodeSplit::Kind::kMapped;
    split.owners = to_vector(input.own_indices(name, mapping));
    return split;
  };
  input->src_split = split_by("mapping_src_ids_to_ranks", mapping_src_ids_to_ranks);
  if (edges.is_bipartite) {
    input->dst_split = split_by("mapping_dst_ids_to_ranks", mapping_dst_ids_to_ranks);
  }
  return input.partition();
}

GraphPartition partition_graph_by_metis(const GraphEdges& edges, const GroupArgument& group) {
  Input input(edges, group);
  input->src_split.kind = input->dst_split.kind = NodeSplit::Kind::kMetis;
  return input.partition();
}

}  // namespace meshrun
