#include "parallel/nn/graph/graph_partition.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "parallel/base/split.h"
#include "parallel/nn/graph/graph_agreement.h"
#include "parallel/nn/graph/metis_owners.h"
#include "parallel/nn/graph/node_directory.h"

namespace meshrun {
namespace {

using detail::GraphAgreement;
using detail::NodeDirectory;
using detail::Routes;
using Numbers = std::vector<int64_t>;

Numbers begins_of(std::span<const int64_t> sizes) {
  Numbers begins = {0};
  for (const int64_t size : sizes) begins.push_back(begins.back() + size);
  return begins;
}

// What METIS chose on rank 0, in blocks of nodes.
struct MetisBlocks {
  Numbers src;
  Numbers dst;
};

// Sends all edges to rank 0, and the nodes' owners back in blocks as compute_split_shapes.
MetisBlocks metis_blocks(const GraphInput& input, const GraphAgreement& graph,
                         ListExchange& exchange) {
  const int world = exchange.world();
  const bool is_root = exchange.rank() == 0;
  const auto to_root = [&](std::span<const int64_t> values) {
    RankLists lists{{values.begin(), values.end()}, Numbers(static_cast<size_t>(world), 0)};
    lists.sizes[0] = static_cast<int64_t>(values.size());
    return exchange.all_to_all(lists).values;
  };
  const Numbers src = to_root(input.src);
  Numbers dst = to_root(input.dst);
  const int64_t all_nodes =
      graph.num_src_nodes + (input.is_bipartite ? graph.num_dst_nodes : int64_t{0});
  Numbers owners;
  std::string problem;
  if (is_root) {
    if (input.is_bipartite) {
      for (int64_t& node : dst) node += graph.num_src_nodes;
    }
    try {
      owners = metis_owners(all_nodes, src, dst, world);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  problem = problem_of_any_rank(problem, exchange);
  if (!problem.empty()) throw std::invalid_argument(problem);
  const auto scatter = [&](int64_t begin, int64_t count) {
    RankLists lists;
    lists.sizes.assign(static_cast<size_t>(world), 0);
    if (is_root) {
      lists.sizes = compute_split_shapes(count, world);
      lists.values.assign(owners.begin() + begin, owners.begin() + begin + count);
    }
    return exchange.all_to_all(lists).values;
  };
  MetisBlocks blocks;
  blocks.src = scatter(0, graph.num_src_nodes);
  if (input.is_bipartite) blocks.dst = scatter(graph.num_src_nodes, graph.num_dst_nodes);
  return blocks;
}

NodeDirectory make_directory(const NodeSplit& split, int64_t num_nodes, const Numbers& given_blocks,
                             const Numbers& by_metis, ListExchange& exchange) {
  if (split.kind == NodeSplit::Kind::kMapped) {
    return NodeDirectory(given_blocks, split.owners, exchange);
  }
  const bool has_sizes = split.kind == NodeSplit::Kind::kConsecutive && !split.sizes.empty();
  const Numbers sizes = has_sizes ? split.sizes : compute_split_shapes(num_nodes, exchange.world());
  Numbers owners = by_metis;
  if (split.kind == NodeSplit::Kind::kConsecutive) {
    owners.assign(static_cast<size_t>(sizes[static_cast<size_t>(exchange.rank())]),
                  exchange.rank());
  }
  return NodeDirectory(begins_of(sizes), std::move(owners), exchange);
}

// Records of `width` numbers, sent to the ranks that `ranks` names; those of one sender stay in
// their order.
template <typename Append>
Numbers send_records(std::span<const int64_t> ranks, int64_t width, const Append& append,
                     ListExchange& exchange) {
  const Routes routes = detail::routes_to(ranks, exchange.world());
  RankLists lists;
  for (const int64_t count : routes.counts) lists.sizes.push_back(width * count);
  lists.values.reserve(static_cast<size_t>(width) * ranks.size());
  for (const int64_t i : routes.order) append(static_cast<size_t>(i), lists.values);
  return exchange.all_to_all(lists).values;
}

// Edges that arrive at this rank's nodes, three numbers each: the place of the destination, the
// source, the edge's id. Those of one destination come in the order of their ids.
Numbers collect_edges(const GraphInput& input, const GraphAgreement& graph,
                      const NodeDirectory& dst_nodes, ListExchange& exchange) {
  Numbers ranks;
  ranks.reserve(input.dst.size());
  for (const int64_t node : input.dst) ranks.push_back(dst_nodes.block_of(node));
  const auto give = [&](size_t e, Numbers& to) {
    to.insert(to.end(), {input.dst[e], input.src[e], graph.first_edge + static_cast<int64_t>(e)});
  };
  // To the block that knows the destination, which sends them on.
  Numbers records = send_records(ranks, 3, give, exchange);
  ranks.clear();
  for (size_t i = 0; i < records.size(); i += 3) {
    ranks.push_back(dst_nodes.owner(records[i]));
    records[i] = dst_nodes.place(records[i]);
  }
  const auto pass_on = [&](size_t i, Numbers& to) {
    to.insert(to.end(), records.begin() + static_cast<int64_t>(3 * i),
              records.begin() + static_cast<int64_t>(3 * i + 3));
  };
  return send_records(ranks, 3, pass_on, exchange);
}

// By destination; returns the source of each edge.
Numbers set_edges(const Numbers& records, GraphPartition& part) {
  const size_t num_nodes = part.map_partitioned_dst_ids_to_global.size();
  const size_t num_edges = records.size() / 3;
  part.local_offsets.assign(num_nodes + 1, 0);
  for (size_t i = 0; i < records.size(); i += 3) {
    ++part.local_offsets[static_cast<size_t>(records[i]) + 1];
  }
  std::partial_sum(part.local_offsets.begin(), part.local_offsets.end(),
                   part.local_offsets.begin());
  Numbers next(part.local_offsets.begin(), part.local_offsets.end() - 1);
  Numbers sources(num_edges);
  part.map_partitioned_edge_ids_to_global.resize(num_edges);
  for (size_t i = 0; i < records.size(); i += 3) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(records[i])]++);
    sources[at] = records[i + 1];
    part.map_partitioned_edge_ids_to_global[at] = records[i + 2];
  }
  return sources;
}

void set_halo(const Numbers& sources, const NodeDirectory& src_nodes, ListExchange& exchange,
              GraphPartition& part) {
  const int world = exchange.world();
  Numbers needed = sources;
  std::sort(needed.begin(), needed.end());
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  const Numbers answers = src_nodes.ask(needed, exchange);
  Numbers owners;
  for (size_t k = 0; k < needed.size(); ++k) owners.push_back(answers[2 * k]);
  const Routes by_owner = detail::routes_to(owners, world);

  Numbers local_ids(needed.size());
  RankLists wanted{{}, by_owner.counts};
  for (size_t local = 0; local < needed.size(); ++local) {
    const auto k = static_cast<size_t>(by_owner.order[local]);
    local_ids[k] = static_cast<int64_t>(local);
    part.map_local_src_ids_to_global.push_back(needed[k]);
    wanted.values.push_back(answers[2 * k + 1]);
  }
  part.local_indices.reserve(sources.size());
  for (const int64_t source : sources) {
    const auto k = std::lower_bound(needed.begin(), needed.end(), source) - needed.begin();
    part.local_indices.push_back(local_ids[static_cast<size_t>(k)]);
  }
  const RankLists asked = exchange.all_to_all(wanted);
  const Numbers begins = begins_of(asked.sizes);
  for (size_t r = 0; r < asked.sizes.size(); ++r) {
    part.scatter_indices.emplace_back(asked.values.begin() + begins[r],
                                      asked.values.begin() + begins[r + 1]);
  }

  // Every rank's column of the table, and how many edges it has.
  RankLists column;
  for (int r = 0; r < world; ++r) {
    column.values.insert(column.values.end(), by_owner.counts.begin(), by_owner.counts.end());
    column.values.push_back(part.num_local_indices());
    column.sizes.push_back(world + 1);
  }
  const Numbers columns = exchange.all_to_all(column).values;
  const auto height = static_cast<size_t>(world) + 1;
  part.sizes.assign(static_cast<size_t>(world), Numbers(static_cast<size_t>(world)));
  for (size_t j = 0; j + 1 < height; ++j) {
    for (size_t i = 0; i + 1 < height; ++i) part.sizes[i][j] = columns[j * height + i];
    part.num_indices_in_each_partition.push_back(columns[j * height + height - 1]);
  }
}

}  // namespace

GraphPartition partition_graph(const GraphInput& input, ListExchange& exchange) {
  const GraphAgreement graph = detail::agree_on_graph(input, exchange);
  MetisBlocks by_metis;
  if (input.src_split.kind == NodeSplit::Kind::kMetis) {
    by_metis = metis_blocks(input, graph, exchange);
  }
  const NodeDirectory src_nodes = make_directory(input.src_split, graph.num_src_nodes,
                                                 graph.src_blocks, by_metis.src, exchange);
  std::optional<NodeDirectory> own_dst_nodes;
  if (input.is_bipartite) {
    own_dst_nodes = make_directory(input.dst_split, graph.num_dst_nodes, graph.dst_blocks,
                                   by_metis.dst, exchange);
  }
  const NodeDirectory& dst_nodes = own_dst_nodes ? *own_dst_nodes : src_nodes;
  const NodeSplit& dst_split = input.is_bipartite ? input.dst_split : input.src_split;

  GraphPartition part;
  part.partition_rank = exchange.rank();
  part.partition_size = exchange.world();
  part.is_bipartite = input.is_bipartite;
  part.num_src_nodes = graph.num_src_nodes;
  part.num_dst_nodes = graph.num_dst_nodes;
  part.num_edges = graph.num_edges;
  part.num_src_nodes_in_each_partition = src_nodes.num_nodes_of_ranks();
  part.num_dst_nodes_in_each_partition = dst_nodes.num_nodes_of_ranks();
  part.src_is_consecutive = input.src_split.kind == NodeSplit::Kind::kConsecutive;
  part.dst_is_consecutive = dst_split.kind == NodeSplit::Kind::kConsecutive;
  part.map_partitioned_src_ids_to_global = src_nodes.own_nodes();
  part.map_partitioned_dst_ids_to_global = dst_nodes.own_nodes();
  const Numbers sources = set_edges(collect_edges(input, graph, dst_nodes, exchange), part);
  set_halo(sources, src_nodes, exchange, part);
  return part;
}

}  // namespace meshrun
