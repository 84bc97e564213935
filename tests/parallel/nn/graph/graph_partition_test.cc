// Partitions of graphs, all ranks in one process, against an oracle that sees the whole graph.
#include "parallel/nn/graph/graph_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "parallel/base/split.h"
#include "parallel/nn/graph/coordinate_boxes.h"
#include "tests/parallel/nn/graph/threaded_exchange.h"

namespace meshrun {
namespace {

using Numbers = std::vector<int64_t>;
using Table = std::vector<Numbers>;

struct Graph {
  int64_t num_src = 0;
  int64_t num_dst = 0;
  Numbers src;
  Numbers dst;
  Numbers src_owners;
  Numbers dst_owners;
};

Numbers nodes_of(const Numbers& owners, int rank) {
  Numbers nodes;
  for (size_t n = 0; n < owners.size(); ++n) {
    if (owners[n] == rank) nodes.push_back(static_cast<int64_t>(n));
  }
  return nodes;
}

int64_t place_in(const Numbers& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) - list.begin();
}

struct LocalGraph {
  Numbers offsets = {0};
  Numbers indices;
  Numbers edges;
  Table sources;  // global ids, by owner
};

LocalGraph oracle(const Graph& graph, int rank, int world) {
  LocalGraph local;
  Numbers edge_sources;
  for (const int64_t node : nodes_of(graph.dst_owners, rank)) {
    for (size_t e = 0; e < graph.dst.size(); ++e) {
      if (graph.dst[e] != node) continue;
      local.edges.push_back(static_cast<int64_t>(e));
      edge_sources.push_back(graph.src[e]);
    }
    local.offsets.push_back(static_cast<int64_t>(local.edges.size()));
  }
  Numbers order;
  const std::set<int64_t> used(edge_sources.begin(), edge_sources.end());
  for (int owner = 0; owner < world; ++owner) {
    local.sources.emplace_back();
    for (const int64_t node : used) {
      if (graph.src_owners[static_cast<size_t>(node)] != owner) continue;
      local.sources.back().push_back(node);
      order.push_back(node);
    }
  }
  for (const int64_t source : edge_sources) local.indices.push_back(place_in(order, source));
  return local;
}

void expect_is_oracles(const GraphPartition& part, const Graph& graph) {
  const int rank = part.partition_rank;
  const int world = part.partition_size;
  const LocalGraph own = oracle(graph, rank, world);
  EXPECT_EQ(part.num_src_nodes, graph.num_src);
  EXPECT_EQ(part.num_dst_nodes, graph.num_dst);
  EXPECT_EQ(part.num_edges, static_cast<int64_t>(graph.src.size()));
  EXPECT_EQ(part.local_offsets, own.offsets);
  EXPECT_EQ(part.local_indices, own.indices);
  EXPECT_EQ(part.map_partitioned_edge_ids_to_global, own.edges);
  EXPECT_EQ(part.map_partitioned_src_ids_to_global, nodes_of(graph.src_owners, rank));
  EXPECT_EQ(part.map_partitioned_dst_ids_to_global, nodes_of(graph.dst_owners, rank));
  const Numbers own_sources = nodes_of(graph.src_owners, rank);
  Numbers local_sources;
  for (const Numbers& list : own.sources) {
    local_sources.insert(local_sources.end(), list.begin(), list.end());
  }
  EXPECT_EQ(part.map_local_src_ids_to_global, local_sources);
  for (int j = 0; j < world; ++j) {
    const LocalGraph theirs = oracle(graph, j, world);
    Numbers sent;
    for (const int64_t node : theirs.sources[static_cast<size_t>(rank)]) {
      sent.push_back(place_in(own_sources, node));
    }
    const auto at = static_cast<size_t>(j);
    EXPECT_EQ(part.scatter_indices[at], sent);
    for (size_t i = 0; i < theirs.sources.size(); ++i) {
      EXPECT_EQ(part.sizes[i][at], static_cast<int64_t>(theirs.sources[i].size()));
    }
    EXPECT_EQ(part.num_indices_in_each_partition[at], static_cast<int64_t>(theirs.edges.size()));
    EXPECT_EQ(part.num_src_nodes_in_each_partition[at],
              static_cast<int64_t>(nodes_of(graph.src_owners, j).size()));
    EXPECT_EQ(part.num_dst_nodes_in_each_partition[at],
              static_cast<int64_t>(nodes_of(graph.dst_owners, j).size()));
  }
}

// Pieces of any size, perhaps 0, that sum to `total`.
Numbers random_sizes(std::mt19937& random, int64_t total, int pieces) {
  Numbers sizes(static_cast<size_t>(pieces), 0);
  for (int64_t i = 0; i < total; ++i) ++sizes[random() % std::min<size_t>(2, sizes.size())];
  std::shuffle(sizes.begin(), sizes.end(), random);
  return sizes;
}

Numbers owners_of_sizes(const Numbers& sizes) {
  Numbers owners;
  for (size_t r = 0; r < sizes.size(); ++r) {
    owners.insert(owners.end(), static_cast<size_t>(sizes[r]), static_cast<int64_t>(r));
  }
  return owners;
}

struct RandomSplit {
  std::vector<NodeSplit> of_ranks;
  Numbers owners;
};

RandomSplit random_split(std::mt19937& random, int64_t nodes, int world) {
  RandomSplit split{std::vector<NodeSplit>(static_cast<size_t>(world)), {}};
  const auto choice = random() % 3;
  const Numbers sizes = random_sizes(random, nodes, world);
  if (choice == 0) {
    split.owners = owners_of_sizes(compute_split_shapes(nodes, world));
  } else if (choice == 1) {
    split.owners = owners_of_sizes(sizes);
    for (NodeSplit& of_rank : split.of_ranks) of_rank.sizes = sizes;
  } else {
    auto at = split.owners.begin();
    for (int64_t n = 0; n < nodes; ++n) {
      split.owners.push_back(static_cast<int64_t>(random() % static_cast<unsigned>(world)));
    }
    at = split.owners.begin();
    for (size_t r = 0; r < split.of_ranks.size(); ++r) {
      split.of_ranks[r].kind = NodeSplit::Kind::kMapped;
      split.of_ranks[r].owners.assign(at, at + sizes[r]);
      at += sizes[r];
    }
  }
  return split;
}

TEST(GraphPartitionTest, EqualsTheOracleForAnySplitAndAnyDistributionOfTheEdges) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    const int world = 1 + static_cast<int>(random() % 5);
    const bool is_bipartite = random() % 2 == 0;
    Graph graph;
    graph.num_src = static_cast<int64_t>(random() % 13);
    graph.num_dst = is_bipartite ? static_cast<int64_t>(random() % 9) : graph.num_src;
    if (graph.num_src > 0 && graph.num_dst > 0) {
      for (size_t e = random() % 40; e > 0; --e) {
        // Few nodes, many edges: self loops and duplicates; the last node is often isolated.
        graph.src.push_back(static_cast<int64_t>(random() % static_cast<size_t>(graph.num_src)));
        graph.dst.push_back(static_cast<int64_t>(random() % static_cast<size_t>(graph.num_dst)));
      }
    }
    const RandomSplit src = random_split(random, graph.num_src, world);
    const RandomSplit dst = is_bipartite ? random_split(random, graph.num_dst, world) : src;
    graph.src_owners = src.owners;
    graph.dst_owners = dst.owners;
    const Numbers held = random_sizes(random, static_cast<int64_t>(graph.src.size()), world);
    std::vector<GraphPartition> parts(static_cast<size_t>(world));
    const auto errors = run_threads(world, [&](ListExchange& exchange) {
      const auto rank = static_cast<size_t>(exchange.rank());
      const auto begin = static_cast<size_t>(
          std::accumulate(held.begin(), held.begin() + exchange.rank(), int64_t{0}));
      GraphInput input;
      input.src = std::span(graph.src).subspan(begin, static_cast<size_t>(held[rank]));
      input.dst = std::span(graph.dst).subspan(begin, static_cast<size_t>(held[rank]));
      // It is enough if one rank knows.
      if (exchange.rank() == world - 1) {
        input.num_src_nodes = graph.num_src;
        input.num_dst_nodes = graph.num_dst;
      }
      input.is_bipartite = is_bipartite;
      input.src_split = src.of_ranks[rank];
      input.dst_split = dst.of_ranks[rank];
      parts[rank] = partition_graph(input, exchange);
    });
    for (const std::string& error : errors) ASSERT_EQ(error, "");
    for (const GraphPartition& part : parts) expect_is_oracles(part, graph);
    if (HasFailure()) return;
  }
}

TEST(GraphPartitionTest, MetisKeepsNeighboursTogetherAndIsolatedNodesToo) {
  // 8 x 8 nodes with edges in both directions, a self loop, and one node without edges.
  Numbers src, dst;
  const auto connect = [&](int64_t a, int64_t b) {
    src.insert(src.end(), {a, b});
    dst.insert(dst.end(), {b, a});
  };
  for (int64_t row = 0; row < 8; ++row) {
    for (int64_t column = 0; column < 8; ++column) {
      if (column < 7) connect(row * 8 + column, row * 8 + column + 1);
      if (row < 7) connect(row * 8 + column, row * 8 + column + 8);
    }
  }
  connect(5, 5);
  for (const bool is_bipartite : {false, true}) {
    for (const int world : {1, 2, 3, 4}) {
      std::vector<GraphPartition> parts(static_cast<size_t>(world));
      const auto errors = run_threads(world, [&](ListExchange& exchange) {
        GraphInput input;
        if (exchange.rank() == 0) {
          input.src = src;
          input.dst = dst;
        }
        input.num_src_nodes = input.num_dst_nodes = 65;
        input.is_bipartite = is_bipartite;
        input.src_split.kind = input.dst_split.kind = NodeSplit::Kind::kMetis;
        parts[static_cast<size_t>(exchange.rank())] = partition_graph(input, exchange);
      });
      for (const std::string& error : errors) ASSERT_EQ(error, "");
      Graph graph{65, 65, src, dst, Numbers(65, -1), Numbers(65, -1)};
      int64_t crossing = 0;
      for (const GraphPartition& part : parts) {
        for (const int64_t node : part.map_partitioned_src_ids_to_global) {
          graph.src_owners[static_cast<size_t>(node)] = part.partition_rank;
        }
        for (const int64_t node : part.map_partitioned_dst_ids_to_global) {
          graph.dst_owners[static_cast<size_t>(node)] = part.partition_rank;
        }
        EXPECT_LE(part.map_partitioned_src_ids_to_global.size(), 65u / world + 8);
        for (int i = 0; i < world; ++i) {
          if (i != part.partition_rank) {
            crossing +=
                part.sizes[static_cast<size_t>(i)][static_cast<size_t>(part.partition_rank)];
          }
        }
      }
      for (const GraphPartition& part : parts) expect_is_oracles(part, graph);
      // Few nodes are needed by other ranks.
      EXPECT_LE(crossing, 25 * (world - 1)) << world;
    }
  }
}

// Vector 10 of physicsnemo's documentation.
Graph two_sources_each() {
  Graph graph{8, 4, {0, 1, 2, 3, 4, 5, 6, 7}, {0, 0, 1, 1, 2, 2, 3, 3}, {}, {}};
  return graph;
}

std::vector<GraphPartition> cut_by_boxes(const Graph& graph, const CoordinateBoxes& boxes,
                                         const std::vector<double>& src,
                                         const std::vector<double>& dst) {
  std::vector<GraphPartition> parts(4);
  const auto errors = run_threads(4, [&](ListExchange& exchange) {
    GraphInput input;
    input.is_bipartite = true;
    input.src_split.kind = input.dst_split.kind = NodeSplit::Kind::kMapped;
    if (exchange.rank() == 1) {
      input.src = graph.src;
      input.dst = graph.dst;
      input.src_split.owners = owners_in_boxes(src, 2, boxes, 4).owners;
      input.dst_split.owners = owners_in_boxes(dst, 2, boxes, 4).owners;
    }
    parts[static_cast<size_t>(exchange.rank())] = partition_graph(input, exchange);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return parts;
}

TEST(GraphPartitionTest, QuadrantsGiveTheDocumentedTables) {
  const CoordinateBoxes quadrants{
      {{0, 0}, {{}, 0}, {{}, {}}, {0, {}}}, {{{}, {}}, {0, {}}, {0, 0}, {{}, 0}}, std::nullopt};
  const std::vector<double> src = {-1, 1, 1, 1, -1, -1, 1, -1, -2, 2, 2, 2, -2, -2, 2, -2};
  const auto parts =
      cut_by_boxes(two_sources_each(), quadrants, src, {src.begin(), src.begin() + 8});
  const Table sizes = {{0, 1, 1, 0}, {0, 1, 1, 0}, {1, 0, 0, 1}, {1, 0, 0, 1}};
  for (const GraphPartition& part : parts) EXPECT_EQ(part.sizes, sizes);
  EXPECT_EQ(parts[0].local_offsets, (Numbers{0, 2}));
  EXPECT_EQ(parts[0].local_indices, (Numbers{0, 1}));
}

TEST(GraphPartitionTest, LatitudesAndLongitudesGiveTheDocumentedTables) {
  const CoordinateBoxes boxes{{{-90, -180}, {-90, 0}, {0, -180}, {0, 0}},
                              {{0, 0}, {0, 180}, {90, 0}, {90, 180}},
                              std::nullopt};
  const auto parts =
      cut_by_boxes(two_sources_each(), boxes,
                   {-75, -135, -60, -135, -45, 135, -30, 135, 30, -45, 45, -45, 60, 45, 75, 45},
                   {-60, -135, -30, 135, 30, -45, 30, 45});
  const Table sizes = {{2, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 2}};
  for (const GraphPartition& part : parts) EXPECT_EQ(part.sizes, sizes);
  EXPECT_EQ(parts[0].local_offsets, (Numbers{0, 2}));
  EXPECT_EQ(parts[0].local_indices, (Numbers{0, 1}));
}

TEST(CoordinateBoxesTest, ALaterBoxWinsAndANodeInNoBoxIsAProblemOrTheFallbacks) {
  CoordinateBoxes boxes{{{0.0}, {1.0}}, {{2.0}, {3.0}}, std::nullopt};
  EXPECT_EQ(owners_in_boxes(std::vector<double>{0, 1, 1.5, 2.5}, 1, boxes, 2).owners,
            (Numbers{0, 1, 1, 1}));
  // A maximum is not in its box.
  const BoxOwners outside = owners_in_boxes(std::vector<double>{0, 3}, 1, boxes, 2);
  EXPECT_NE(outside.problem.find("the node at (3), number 1 of the 2"), std::string::npos)
      << outside.problem;
  EXPECT_NE(owners_in_boxes(std::vector<double>{NAN}, 1, boxes, 2).problem, "");
  boxes.fallback_rank = 0;
  EXPECT_EQ(owners_in_boxes(std::vector<double>{3, NAN, 2}, 1, boxes, 2).owners,
            (Numbers{0, 0, 1}));
  boxes.fallback_rank = 2;
  EXPECT_NE(owners_in_boxes(std::vector<double>{3}, 1, boxes, 2).problem.find("fallback_rank"),
            std::string::npos);
  EXPECT_NE(owners_in_boxes(std::vector<double>{3}, 1, boxes, 3).problem.find("2 boxes"),
            std::string::npos);
  EXPECT_NE(owners_in_boxes(std::vector<double>{3, 3}, 2, boxes, 2).problem.find("1 bounds"),
            std::string::npos);
}

// Changes rank 1's input alone, or that of all ranks.
std::vector<std::string> errors_of(const std::function<void(GraphInput&, int rank)>& change) {
  const Numbers src = {0, 1, 2};
  const Numbers dst = {2, 0, 1};
  return run_threads(3, [&](ListExchange& exchange) {
    GraphInput input;
    input.src = src;
    input.dst = dst;
    input.num_src_nodes = 4;
    change(input, exchange.rank());
    partition_graph(input, exchange);
  });
}

void expect_everywhere(const std::vector<std::string>& errors, const std::string& part) {
  for (const std::string& error : errors) {
    EXPECT_EQ(error, errors[0]);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

TEST(GraphPartitionTest, WrongInputOnOneRankIsTheSameErrorOnAll) {
  const auto on_rank_1 = [](const std::function<void(GraphInput&)>& change) {
    return errors_of([&](GraphInput& input, int rank) {
      if (rank == 1) change(input);
    });
  };
  const Numbers negative = {0, -3, 1};
  const Numbers large = {0, 4, 1};
  expect_everywhere(on_rank_1([](GraphInput& input) { input.problem = "no graph today"; }),
                    "rank 1: no graph today");
  expect_everywhere(on_rank_1([&](GraphInput& input) { input.src = negative; }),
                    "rank 1: src[1] is -3");
  expect_everywhere(on_rank_1([&](GraphInput& input) { input.dst = large; }),
                    "rank 1 has an edge at source node 4, but there are 4");
  expect_everywhere(on_rank_1([](GraphInput& input) { input.dst = input.dst.subspan(1); }),
                    "rank 1: src has 3 edges and dst has 2");
  expect_everywhere(on_rank_1([](GraphInput& input) { input.num_src_nodes = 5; }),
                    "rank 0 says that there are 4 source nodes, rank 1 5");
  expect_everywhere(on_rank_1([](GraphInput& input) { input.is_bipartite = true; }),
                    "rank 1 gives another answer to whether the graph is bipartite");
  expect_everywhere(on_rank_1([](GraphInput& input) {
                      input.src_split.sizes = {4, 0, 0};
                    }),
                    "rank 1 gives another table of source sizes");
  expect_everywhere(
      on_rank_1([](GraphInput& input) { input.src_split.kind = NodeSplit::Kind::kMetis; }),
      "rank 1 gives another kind of split");
  expect_everywhere(errors_of([](GraphInput& input, int) {
                      input.src_split.sizes = {1, 1, 1};
                    }),
                    "source sizes [1, 1, 1] sum to 3, but there are 4 nodes");
  expect_everywhere(errors_of([](GraphInput& input, int) { input.src_split.sizes = {4}; }),
                    "one for each of the 3 ranks");
  expect_everywhere(errors_of([](GraphInput& input, int rank) {
                      input.src_split.kind = NodeSplit::Kind::kMapped;
                      if (rank == 2) input.src_split.owners = {0, 1, 3, 0};
                    }),
                    "rank 2: the owner of source node 2 of this rank's block is 3");
  expect_everywhere(errors_of([](GraphInput& input, int) {
                      input.src_split.kind = NodeSplit::Kind::kMapped;
                      input.src_split.owners = {0, 1};
                    }),
                    "the ranks give the owners of 6 source nodes, but there are 4");
}

}  // namespace
}  // namespace meshrun
