#include "parallel/nn/graph/distributed_graph.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/gather_v.h"
#include "parallel/collectives/indexed_all_to_all_v.h"
#include "parallel/collectives/scatter_v.h"
#include "parallel/nn/graph/group_exchange.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;

Tensor longs(const std::vector<int64_t>& list, c10::Device device) {
  return at::tensor(list, at::TensorOptions().dtype(at::kLong)).to(device);
}

// Nodes or edges of one kind, and how the ranks' parts of them, one after another, are ordered.
class Kind {
 public:
  Kind(std::string name, int64_t total, std::vector<int64_t> sizes, bool is_consecutive,
       const std::vector<int64_t>& own_ids, GroupArgument::Handle group, c10::Device device)
      : name_(std::move(name)),
        total_(total),
        sizes_(std::move(sizes)),
        is_consecutive_(is_consecutive),
        group_(std::move(group)),
        device_(device),
        own_ids_(longs(own_ids, device)),
        is_known_at_(sizes_.size(), false) {}

  Tensor in_partition(const Tensor& features, bool scatter_features, int64_t src_rank) {
    if (!scatter_features) {
      check_rows(features, total_);
      return features.to(device_).index_select(0, own_ids_);
    }
    Tensor sent = features;
    const bool is_here = src_rank == group_->getRank();
    const std::optional<Tensor> order = order_at(src_rank);
    // Wrong features go as they are: scatter_v() says on all ranks what is wrong with them.
    if (is_here && features.defined() && features.dim() > 0 && features.size(0) == total_ &&
        order) {
      sent = features.to(device_).index_select(0, *order);
    }
    return scatter_v(sent, sizes_, 0, src_rank, group_);
  }

  Tensor in_local_graph(const Tensor& features) const {
    check_rows(features, own_ids_.size(0));
    return features;
  }

  Tensor global(const Tensor& features, bool on_all_ranks, int64_t dst_rank) {
    const std::optional<Tensor> order = on_all_ranks ? order_everywhere() : order_at(dst_rank);
    const Tensor gathered = on_all_ranks ? all_gather_v(features, sizes_, 0, true, group_)
                                         : gather_v(features, sizes_, 0, dst_rank, group_);
    if (!order || gathered.size(0) != total_) return gathered;
    const Tensor inverse =
        at::empty_like(*order).index_copy_(0, *order, at::arange(total_, order->options()));
    return gathered.index_select(0, inverse);
  }

 private:
  void check_rows(const Tensor& features, int64_t rows) const {
    if (features.defined() && features.dim() >= 1 && features.size(0) == rows) return;
    throw GraphError(c10::str(
        "features of ", rows, " ", name_, " are expected, one row each; got ",
        features.defined() ? c10::str("shape ", features.sizes()) : "an undefined tensor"));
  }

  // The ids in the order of the ranks' parts; absent: they ascend, or this rank does not know them.
  // Collective where a rank does not know them yet; all ranks know which ones do.
  std::optional<Tensor> order_at(int64_t rank) {
    if (is_consecutive_ || rank < 0 || rank >= group_->getSize()) return std::nullopt;
    const auto place = static_cast<size_t>(rank);
    if (!is_known_at_[place]) {
      const Tensor ids = gather_v(own_ids_, sizes_, 0, rank, group_);
      if (rank == group_->getRank()) order_ = ids;
      is_known_at_[place] = true;
    }
    return order_;
  }

  std::optional<Tensor> order_everywhere() {
    if (is_consecutive_) return std::nullopt;
    if (std::find(is_known_at_.begin(), is_known_at_.end(), false) != is_known_at_.end()) {
      order_ = all_gather_v(own_ids_, sizes_, 0, true, group_);
      is_known_at_.assign(is_known_at_.size(), true);
    }
    return order_;
  }

  const std::string name_;
  const int64_t total_;
  const std::vector<int64_t> sizes_;
  const bool is_consecutive_;
  const GroupArgument::Handle group_;
  const c10::Device device_;
  const Tensor own_ids_;
  std::vector<bool> is_known_at_;  // the same on all ranks
  std::optional<Tensor> order_;
};

std::vector<int64_t> destinations_of(const GraphPartition& part) {
  std::vector<int64_t> rows;
  for (int64_t node = 0; node < part.num_local_dst_nodes(); ++node) {
    const auto at = static_cast<size_t>(node);
    rows.insert(rows.end(),
                static_cast<size_t>(part.local_offsets[at + 1] - part.local_offsets[at]), node);
  }
  return rows;
}

IndexedAllToAllPlan plan_of(const GraphPartition& part, const GroupArgument::Handle& group,
                            c10::Device device) {
  std::vector<Tensor> indices;
  for (const auto& list : part.scatter_indices) indices.push_back(longs(list, device));
  return IndexedAllToAllPlan(indices, part.sizes,
                             static_cast<int64_t>(part.map_partitioned_src_ids_to_global.size()),
                             group);
}

// Raises on every rank of the group what is wrong on any.
GraphPartition checked(GraphPartition part, const GroupArgument::Handle& group) {
  std::string problem;
  if (part.partition_size != group->getSize() || part.partition_rank != group->getRank()) {
    problem =
        c10::str("the partition is of rank ", part.partition_rank, " of ", part.partition_size,
                 ", and this is rank ", group->getRank(), " of a group of ", group->getSize());
  }
  detail::GroupExchange exchange(group);
  problem = problem_of_any_rank(problem, exchange);
  if (!problem.empty()) throw GraphError("DistributedGraph: " + problem);
  return part;
}

}  // namespace

struct DistributedGraph::State {
  State(GraphPartition its_part, GroupArgument::Handle its_group, c10::Device its_device)
      : part(checked(std::move(its_part), its_group)),
        group(its_group),
        device(its_device),
        src("source nodes", part.num_src_nodes, part.num_src_nodes_in_each_partition,
            part.src_is_consecutive, part.map_partitioned_src_ids_to_global, group, device),
        dst("destination nodes", part.num_dst_nodes, part.num_dst_nodes_in_each_partition,
            part.dst_is_consecutive, part.map_partitioned_dst_ids_to_global, group, device),
        edges("edges", part.num_edges, part.num_indices_in_each_partition, false,
              part.map_partitioned_edge_ids_to_global, group, device),
        halo(plan_of(part, group, device)),
        sources(part.local_indices, part.num_local_src_nodes(), device),
        destinations(destinations_of(part), part.num_local_dst_nodes(), device) {}

  const GraphPartition part;
  const GroupArgument::Handle group;
  const c10::Device device;
  Kind src;
  Kind dst;
  Kind edges;
  const IndexedAllToAllPlan halo;
  const RowMap sources;
  const RowMap destinations;
};

DistributedGraph::DistributedGraph(GraphPartition partition, const GroupArgument& group,
                                   c10::Device device)
    : state_(std::make_shared<State>(std::move(partition), group.get(), device)) {}

const GraphPartition& DistributedGraph::partition() const { return state_->part; }
const GroupArgument::Handle& DistributedGraph::group() const { return state_->group; }
c10::Device DistributedGraph::device() const { return state_->device; }
const RowMap& DistributedGraph::sources() const { return state_->sources; }
const RowMap& DistributedGraph::destinations() const { return state_->destinations; }

Tensor DistributedGraph::get_src_node_features_in_partition(const Tensor& global_node_features,
                                                            BoolArgument scatter_features,
                                                            IntArgument src_rank) const {
  return state_->src.in_partition(global_node_features, scatter_features, src_rank);
}

Tensor DistributedGraph::get_dst_node_features_in_partition(const Tensor& global_node_features,
                                                            BoolArgument scatter_features,
                                                            IntArgument src_rank) const {
  return state_->dst.in_partition(global_node_features, scatter_features, src_rank);
}

Tensor DistributedGraph::get_edge_features_in_partition(const Tensor& global_edge_features,
                                                        BoolArgument scatter_features,
                                                        IntArgument src_rank) const {
  return state_->edges.in_partition(global_edge_features, scatter_features, src_rank);
}

Tensor DistributedGraph::get_src_node_features_in_local_graph(
    const Tensor& partitioned_src_node_features) const {
  return indexed_all_to_all_v(partitioned_src_node_features, state_->halo);
}

Tensor DistributedGraph::get_dst_node_features_in_local_graph(
    const Tensor& partitioned_dst_node_features) const {
  return state_->dst.in_local_graph(partitioned_dst_node_features);
}

Tensor DistributedGraph::get_edge_features_in_local_graph(
    const Tensor& partitioned_edge_features) const {
  return state_->edges.in_local_graph(partitioned_edge_features);
}

Tensor DistributedGraph::get_global_src_node_features(const Tensor& partitioned_node_features,
                                                      BoolArgument get_on_all_ranks,
                                                      IntArgument dst_rank) const {
  return state_->src.global(partitioned_node_features, get_on_all_ranks, dst_rank);
}

Tensor DistributedGraph::get_global_dst_node_features(const Tensor& partitioned_node_features,
                                                      BoolArgument get_on_all_ranks,
                                                      IntArgument dst_rank) const {
  return state_->dst.global(partitioned_node_features, get_on_all_ranks, dst_rank);
}

Tensor DistributedGraph::get_global_edge_features(const Tensor& partitioned_edge_features,
                                                  BoolArgument get_on_all_ranks,
                                                  IntArgument dst_rank) const {
  return state_->edges.global(partitioned_edge_features, get_on_all_ranks, dst_rank);
}

}  // namespace meshrun
