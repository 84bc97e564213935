// Distributed graphs and the network on them in real rank processes, against one rank that holds
// the whole graph and against formulas written with ATen's operators.
#include "parallel/nn/graph/distributed_graph.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/base/collective_errors.h"
#include "parallel/nn/graph/graph_network.h"
#include "parallel/nn/graph/icosahedral_mesh.h"
#include "parallel/nn/shared_module.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/gradcheck.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {

// Arguments of calls that the compiler alone looks at.
const DistributedGraph& some_graph();
const at::Tensor& some_tensor();
std::span<const int64_t> some_rows();
const Activation& some_activation();

namespace {

using at::Tensor;

const at::TensorOptions kLongs = at::TensorOptions().dtype(at::kLong);

struct Graph {
  std::string name;
  int64_t num_nodes = 0;
  Tensor src;
  Tensor dst;
  Tensor coordinates;  // [nodes, 3]
};

// Isolated nodes (the last ones among them), self loops, duplicate edges.
Graph random_graph() {
  at::manual_seed(3);
  Graph graph{"random", 37, {}, {}, at::randn({37, 3}, at::kDouble)};
  const Tensor src = at::randint(0, 33, {90}, kLongs);
  const Tensor dst = at::randint(4, 30, {90}, kLongs);
  graph.src = at::cat({src, at::tensor({7, 7, 9}, kLongs), src.slice(0, 0, 6)});
  graph.dst = at::cat({dst, at::tensor({7, 7, 9}, kLongs), dst.slice(0, 0, 6)});
  return graph;
}

Graph icosahedral_graph() {
  const IcosahedralMesh mesh = icosahedral_mesh(2);
  Graph graph{"icosahedral", mesh.num_nodes(), at::tensor(mesh.src, kLongs),
              at::tensor(mesh.dst, kLongs), at::empty({mesh.num_nodes(), 3}, at::kDouble)};
  for (int64_t n = 0; n < mesh.num_nodes(); ++n) {
    for (int64_t d = 0; d < 3; ++d) {
      graph.coordinates[n][d] = mesh.positions[static_cast<size_t>(n)][static_cast<size_t>(d)];
    }
  }
  return graph;
}

// Halves, thirds, ... by the first coordinate; the last box is empty in worlds above 2.
CoordinateBoxes slabs(int world) {
  CoordinateBoxes boxes;
  for (int r = 0; r < world; ++r) {
    boxes.min.push_back({std::nullopt, std::nullopt, std::nullopt});
    boxes.max.push_back({std::nullopt, std::nullopt, std::nullopt});
    if (r > 0)
      boxes.min[static_cast<size_t>(r)][0] = r == world - 1 && r > 1 ? 100 : -0.5 + 0.5 * r;
  }
  return boxes;
}

using Split = std::function<GraphPartition(const Graph&, const JoinedWorld&)>;

GraphEdges whole(const Graph& graph) {
  return {
      .src = graph.src, .dst = graph.dst, .num_src_nodes = graph.num_nodes, .held = Held::kWhole};
}

// Rank 0 has all of it.
GraphEdges on_rank_0(const Graph& graph, int rank) {
  return rank == 0
             ? GraphEdges{.src = graph.src, .dst = graph.dst, .num_src_nodes = graph.num_nodes}
             : GraphEdges{};
}

std::map<std::string, Split> splits() {
  return {
      {"nodewise",
       [](const Graph& g, const JoinedWorld&) { return partition_graph_nodewise(whole(g)); }},
      {"all nodes on the last rank",
       [](const Graph& g, const JoinedWorld& world) {
         std::vector<int64_t> sizes(static_cast<size_t>(world.size), 0);
         sizes.back() = g.num_nodes;
         return partition_graph_nodewise(on_rank_0(g, world.rank), sizes, {});
       }},
      {"boxes",
       [](const Graph& g, const JoinedWorld& world) {
         return partition_graph_by_coordinate_bbox(whole(g), g.coordinates, {}, slabs(world.size));
       }},
      {"METIS",
       [](const Graph& g, const JoinedWorld& world) {
         return partition_graph_by_metis(on_rank_0(g, world.rank));
       }},
  };
}

void expect_close(const Tensor& actual, const Tensor& wanted, const std::string& what) {
  const double tolerance = wanted.scalar_type() == at::kFloat ? 1e-5 : 1e-12;
  ASSERT_EQ(actual.sizes(), wanted.sizes()) << what;
  const double difference = (actual - wanted).norm().item<double>();
  EXPECT_LE(difference, tolerance * wanted.norm().item<double>()) << what;
}

GraphNetwork make_network(at::ScalarType type, const std::string& aggregation) {
  at::manual_seed(11);
  GraphNetwork network(GraphNetworkOptions(3, 2, 2)
                           .processor_size(3)
                           .mlp_activation_fn("silu")
                           .num_layers_edge_processor(1)
                           .num_layers_node_processor(1)
                           .hidden_dim_processor(8)
                           .hidden_dim_node_encoder(6)
                           .hidden_dim_edge_encoder(5)
                           .hidden_dim_node_decoder(7)
                           .aggregation(aggregation));
  network->to(type);
  return network;
}

// The network as its paper says it, from the parameters by name.
struct Formula {
  std::map<std::string, Tensor> parameters;

  Tensor mlp(const std::string& name, int64_t layers, bool has_norm, Tensor x) const {
    for (int64_t i = 0; i < layers; ++i) {
      const std::string layer = name + ".model." + std::to_string(2 * i);
      if (i > 0) x = at::silu(x);
      x = at::linear(x, parameters.at(layer + ".weight"), parameters.at(layer + ".bias"));
    }
    if (!has_norm) return x;
    const std::string norm = name + ".model." + std::to_string(2 * layers - 1);
    return at::layer_norm(x, {x.size(1)}, parameters.at(norm + ".weight"),
                          parameters.at(norm + ".bias"));
  }

  Tensor operator()(const Graph& graph, Tensor nodes, Tensor edges, bool is_mean) const {
    edges = mlp("edge_encoder", 3, true, edges);
    nodes = mlp("node_encoder", 3, true, nodes);
    for (int block = 0; block < 3; ++block) {
      const std::string layer = "processor.processor_layers.";
      edges =
          edges +
          mlp(layer + std::to_string(2 * block) + ".edge_mlp", 2, true,
              at::cat({edges, nodes.index_select(0, graph.src), nodes.index_select(0, graph.dst)},
                      1));
      Tensor sums = at::zeros_like(nodes).index_add(0, graph.dst, edges);
      if (is_mean) {
        const Tensor ones = at::ones({graph.dst.size(0), 1}, nodes.options());
        sums = sums / at::zeros({graph.num_nodes, 1}, nodes.options())
                          .index_add(0, graph.dst, ones)
                          .clamp_min(1);
      }
      nodes = nodes + mlp(layer + std::to_string(2 * block + 1) + ".node_mlp", 2, true,
                          at::cat({sums, nodes}, 1));
    }
    return mlp("node_decoder", 3, false, nodes);
  }
};

struct Outcome {
  Tensor output;
  Tensor node_gradient;
  Tensor edge_gradient;
  std::map<std::string, Tensor> gradients;
};

std::map<std::string, Tensor> gradients_of(const GraphNetwork& network) {
  std::map<std::string, Tensor> gradients;
  for (const auto& item : network->named_parameters()) gradients[item.key()] = item.value().grad();
  return gradients;
}

const bool kNetwork = register_rank_function("graph_network", [] {
  const JoinedWorld world;
  for (const Graph& graph : {random_graph(), icosahedral_graph()}) {
    for (const auto& [type, aggregation] : std::vector<std::pair<at::ScalarType, std::string>>{
             {at::kFloat, "sum"}, {at::kDouble, "mean"}}) {
      at::manual_seed(5);
      const Tensor node_features = at::randn({graph.num_nodes, 3}, at::kDouble).to(type);
      const Tensor edge_features = at::randn({graph.src.size(0), 2}, at::kDouble).to(type);
      const Tensor weights = at::rand({graph.num_nodes, 2}, at::kDouble).to(type);

      Outcome wanted;
      {
        GraphNetwork network = make_network(type, aggregation);
        Formula formula;
        for (const auto& item : network->named_parameters()) {
          formula.parameters[item.key()] = item.value();
        }
        const Tensor nodes = node_features.clone().requires_grad_();
        const Tensor edges = edge_features.clone().requires_grad_();
        wanted.output = formula(graph, nodes, edges, aggregation == "mean");
        (wanted.output.square() * weights).sum().backward();
        wanted.node_gradient = nodes.grad();
        wanted.edge_gradient = edges.grad();
        wanted.gradients = gradients_of(network);
      }
      for (const auto& [name, split] : splits()) {
        SCOPED_TRACE(graph.name + ", " + name + ", " + c10::toString(type));
        const DistributedGraph distributed(split(graph, world));
        GraphNetwork network = make_network(type, aggregation);
        mark_module_as_shared(*network);
        const Tensor nodes =
            distributed.get_src_node_features_in_partition(node_features).requires_grad_();
        const Tensor edges =
            distributed.get_edge_features_in_partition(edge_features).requires_grad_();
        const Tensor own_weights = distributed.get_dst_node_features_in_partition(weights);
        const Tensor output = network(nodes, edges, distributed);
        (output.square() * own_weights).sum().backward();
        expect_close(distributed.get_global_dst_node_features(output.detach()), wanted.output,
                     "output");
        expect_close(distributed.get_global_src_node_features(nodes.grad()), wanted.node_gradient,
                     "node gradient");
        expect_close(distributed.get_global_edge_features(edges.grad()), wanted.edge_gradient,
                     "edge gradient");
        for (const auto& [parameter, gradient] : gradients_of(network)) {
          expect_close(gradient, wanted.gradients.at(parameter), parameter);
        }
      }
    }
  }
});

TEST(GraphNetworkTest, OnAnyNumberOfRanksItIsTheNetworkOfItsPaper) {
  run_in_worlds("graph_network", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("graph_network", {2}, {"gloo"});
}

// Two kinds of nodes with owners at random, edges spread over the ranks at random.
struct Bipartite {
  Tensor src = at::randint(0, 11, {40}, kLongs);
  Tensor dst = at::randint(0, 7, {40}, kLongs);
  Tensor src_features = at::randn({12, 2, 3}, at::kDouble);
  Tensor dst_features = at::randn({7, 2}, at::kDouble);
  Tensor edge_features = at::randn({40}, at::kDouble);
};

DistributedGraph cut(const Bipartite& graph, const JoinedWorld& world) {
  const Tensor src_owners = at::randint(0, world.size, {12}, kLongs);
  const Tensor dst_owners = at::randint(0, world.size, {7}, kLongs);
  const GraphEdges edges{.src = graph.src,
                         .dst = graph.dst,
                         .num_src_nodes = 12,
                         .num_dst_nodes = 7,
                         .is_bipartite = true,
                         .held = Held::kWhole};
  return DistributedGraph(partition_graph_with_id_mapping(edges, src_owners, dst_owners));
}

const bool kFeatures = register_rank_function("graph_features", [] {
  const JoinedWorld world;
  at::manual_seed(9);
  const Bipartite whole;
  const DistributedGraph graph = cut(whole, world);
  const GraphPartition& part = graph.partition();
  const auto ids = [](const std::vector<int64_t>& list) { return at::tensor(list, kLongs); };

  const Tensor all = whole.src_features.clone().requires_grad_();
  const Tensor own = graph.get_src_node_features_in_partition(all);
  EXPECT_TRUE(at::equal(own, all.index_select(0, ids(part.map_partitioned_src_ids_to_global))));
  // From each rank, where the others have a template.
  for (int from = 0; from < world.size; ++from) {
    const Tensor empty = at::empty({0, 2, 3}, at::kDouble);
    const Tensor given = (world.rank == from ? whole.src_features.clone() : empty).requires_grad_();
    const Tensor scattered = graph.get_src_node_features_in_partition(given, true, from);
    EXPECT_TRUE(at::equal(scattered, own));
    (scattered * (world.rank + 1)).sum().backward();
    if (world.rank == from) {
      const Tensor everywhere = graph.get_global_src_node_features(
          at::full_like(own, world.rank + 1).detach(), false, from);
      EXPECT_TRUE(at::equal(given.grad(), everywhere));
    } else {
      graph.get_global_src_node_features(at::full_like(own, world.rank + 1).detach(), false, from);
    }
  }
  EXPECT_TRUE(
      at::equal(graph.get_dst_node_features_in_partition(whole.dst_features, true),
                whole.dst_features.index_select(0, ids(part.map_partitioned_dst_ids_to_global))));
  EXPECT_TRUE(
      at::equal(graph.get_edge_features_in_partition(whole.edge_features, true, world.size - 1),
                whole.edge_features.index_select(0, ids(part.map_partitioned_edge_ids_to_global))));

  const Tensor local = graph.get_src_node_features_in_local_graph(own);
  EXPECT_TRUE(at::equal(local, all.index_select(0, ids(part.map_local_src_ids_to_global))));
  const Tensor sums = graph.destinations().sum(graph.sources().gather(local));
  const Tensor on_all = graph.get_global_dst_node_features(sums);
  const Tensor wanted =
      at::zeros({7, 2, 3}, at::kDouble).index_add(0, whole.dst, all.index_select(0, whole.src));
  EXPECT_TRUE(at::allclose(on_all, wanted, 1e-13, 1e-13));
  const Tensor on_last = graph.get_global_dst_node_features(sums.detach(), false, world.size - 1);
  if (world.rank == world.size - 1) {
    EXPECT_TRUE(at::allclose(on_last, wanted, 1e-13, 1e-13));
  } else {
    EXPECT_EQ(on_last.size(0), 0);
  }
  EXPECT_TRUE(at::equal(graph.get_dst_node_features_in_local_graph(sums), sums));
  const Tensor degrees = graph.get_global_dst_node_features(graph.destinations().counts());
  EXPECT_TRUE(at::equal(degrees, at::bincount(whole.dst, {}, 7)));

  // Each rank's loss sees all of it: the gradient has every rank's part.
  const Tensor weights = at::rand_like(wanted);
  (on_all * weights).sum().backward();
  const Tensor reference = whole.src_features.clone().requires_grad_();
  (at::zeros_like(weights).index_add(0, whole.dst, reference.index_select(0, whole.src)) * weights *
   world.size)
      .sum()
      .backward();
  const Tensor rows = ids(part.map_partitioned_src_ids_to_global);
  EXPECT_TRUE(at::allclose(all.grad().index_select(0, rows), reference.grad().index_select(0, rows),
                           1e-12, 1e-12));

  const RankFunction pass = [&](const std::vector<Tensor>& inputs) -> std::vector<Tensor> {
    const Tensor halo = graph.get_src_node_features_in_local_graph(inputs[0]);
    const Tensor sum = graph.destinations().sum(graph.sources().gather(halo).tanh());
    return {graph.destinations().gather(sum.square()) * inputs[1].unsqueeze(1)};
  };
  const std::vector<Tensor> inputs = {
      whole.src_features.select(2, 0).index_select(0, rows).requires_grad_(),
      graph.get_edge_features_in_partition(whole.edge_features).requires_grad_()};
  EXPECT_EQ(gradcheck(world.manager.world(), pass, inputs), "");
  EXPECT_EQ(gradgradcheck(world.manager.world(), pass, inputs), "");
});

TEST(DistributedGraphTest, FeaturesGoToTheirRanksAndBack) {
  run_in_worlds("graph_features", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("graph_features", {3}, {"gloo"});
}

const bool kVector = register_rank_function("graph_vector_10", [] {
  const JoinedWorld world;
  const Tensor offsets = at::arange(5, kLongs) * 2;
  const Tensor indices = at::arange(8, kLongs);
  const GraphEdges edges = edges_from_csc(offsets, indices, std::nullopt, true, Held::kWhole);
  const CoordinateBoxes quadrants{
      {{0, 0}, {{}, 0}, {{}, {}}, {0, {}}}, {{{}, {}}, {0, {}}, {0, 0}, {{}, 0}}, std::nullopt};
  const Tensor src = at::tensor({-1, 1, 1, 1, -1, -1, 1, -1, -2, 2, 2, 2, -2, -2, 2, -2})
                         .to(at::kFloat)
                         .view({8, 2});
  const GraphPartition part =
      partition_graph_by_coordinate_bbox(edges, src, src.slice(0, 0, 4), quadrants);
  using Table = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(part.sizes, (Table{{0, 1, 1, 0}, {0, 1, 1, 0}, {1, 0, 0, 1}, {1, 0, 0, 1}}));
  if (world.rank == 0) {
    EXPECT_EQ(part.local_offsets, (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(part.local_indices, (std::vector<int64_t>{0, 1}));
  }
  const CoordinateBoxes globe{{{-90, -180}, {-90, 0}, {0, -180}, {0, 0}},
                              {{0, 0}, {0, 180}, {90, 0}, {90, 180}},
                              std::nullopt};
  const auto pairs = [](const std::vector<int64_t>& latitudes,
                        const std::vector<int64_t>& longitudes) {
    return at::stack({at::tensor(latitudes), at::tensor(longitudes)}, 1).to(at::kFloat);
  };
  const GraphPartition other = partition_graph_by_coordinate_bbox(
      edges, pairs({-75, -60, -45, -30, 30, 45, 60, 75}, {-135, -135, 135, 135, -45, -45, 45, 45}),
      pairs({-60, -30, 30, 30}, {-135, 135, -45, 45}), globe);
  EXPECT_EQ(other.sizes, (Table{{2, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 2, 0}, {0, 0, 0, 2}}));
  if (world.rank == 0) {
    EXPECT_EQ(other.local_offsets, (std::vector<int64_t>{0, 2}));
    EXPECT_EQ(other.local_indices, (std::vector<int64_t>{0, 1}));
  }
});

TEST(DistributedGraphTest, TheDocumentedExamplesOfPhysicsNeMo) {
  run_in_worlds("graph_vector_10", {4}, {"ucx"});
}

const bool kWrong = register_rank_function("graph_wrong", [] {
  const JoinedWorld world;
  const bool odd = world.rank == 1;
  const Graph graph = random_graph();
  const auto expect_graph_error = [](const std::function<void()>& call, const char* part) {
    expect_error_on_all_ranks(call, part);
    EXPECT_THROW(call(), GraphError);
  };
  // Input that is wrong on one rank.
  expect_graph_error(
      [&] {
        GraphEdges edges = whole(graph);
        if (odd) edges.src = edges.src.to(at::kFloat);
        partition_graph_nodewise(edges);
      },
      "rank 1: src is a tensor of float");
  expect_graph_error(
      [&] {
        GraphEdges edges = whole(graph);
        if (odd) edges.num_src_nodes = 20;
        partition_graph_nodewise(edges);
      },
      "rank 0 says that there are 37 source nodes, rank 1 20");
  expect_graph_error(
      [&] {
        CoordinateBoxes boxes = slabs(world.size);
        for (auto& box : boxes.max) box[2] = 0.1;
        partition_graph_by_coordinate_bbox(whole(graph), graph.coordinates, {}, boxes);
      },
      "is in no box");
  expect_graph_error(
      [&] {
        const Tensor offsets = odd ? at::tensor({0, 3, 1}, kLongs) : at::tensor({0, 1, 3}, kLongs);
        partition_graph_nodewise(edges_from_csc(offsets, at::tensor({0, 1, 1}, kLongs),
                                                std::nullopt, false, Held::kWhole));
      },
      "rank 1: dst is a tensor");
  expect_graph_error(
      [&] {
        const Tensor mapping = at::full({37}, odd ? -1 : 0, kLongs);
        partition_graph_with_id_mapping(whole(graph), mapping, {});
      },
      "rank 1: the owner of source node 0 of this rank's block is -1");
  GraphPartition part = partition_graph_nodewise(whole(graph));
  expect_graph_error(
      [&] {
        GraphPartition other = part;
        if (odd) other.partition_rank = 0;
        const DistributedGraph wrong(std::move(other));
      },
      "rank 1: the partition is of rank 0");

  // Features that are wrong on one rank.
  const DistributedGraph distributed(part);
  const int64_t own = part.num_local_dst_nodes();
  EXPECT_THROW(distributed.get_src_node_features_in_partition(at::zeros({36, 2})), GraphError);
  EXPECT_THROW(distributed.get_edge_features_in_local_graph(at::zeros({1})), GraphError);
  const auto expect_collective_error = [](const std::function<void()>& call, const char* part) {
    const std::string text = error_of(call);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_THROW(call(), CollectiveArgumentError);
  };
  expect_collective_error(
      [&] {
        distributed.get_src_node_features_in_local_graph(at::zeros({own + (odd ? 1 : 0), 2}));
      },
      "slices along dim 0");
  expect_collective_error(
      [&] {
        distributed.get_src_node_features_in_partition(at::zeros({36, 2}), true, odd ? 1 : 1);
      },
      "36");
  expect_collective_error(
      [&] {
        distributed.get_global_dst_node_features(at::zeros({own + (odd ? 1 : 0), 2}));
      },
      "sizes");
  GraphNetwork network = make_network(at::kFloat, "sum");
  expect_collective_error(
      [&] {
        network(at::zeros({own, odd ? 4 : 3}), at::zeros({part.num_local_indices(), 2}),
                distributed);
      },
      "node features of shape");

  // Options, here alone.
  const auto with = [](const GraphNetworkOptions& options) { GraphNetwork{options}; };
  EXPECT_THROW(with(GraphNetworkOptions(3, 2, 0)), c10::ValueError);
  EXPECT_THROW(with(GraphNetworkOptions(3, 2, 1).processor_size(0)), c10::ValueError);
  EXPECT_THROW(with(GraphNetworkOptions(3, 2, 1).aggregation("max")), c10::ValueError);
  EXPECT_THROW(with(GraphNetworkOptions(3, 2, 1).mlp_activation_fn("step")), c10::ValueError);
  // The group still works.
  expect_close(distributed.get_global_src_node_features(
                   distributed.get_src_node_features_in_partition(graph.coordinates)),
               graph.coordinates, "coordinates");
});

template <typename T>
constexpr bool kIsANumberOfNodes = requires(T value) {
  GraphEdges{.num_src_nodes = value};
  GraphEdges{.num_dst_nodes = value};
};
template <typename T>
constexpr bool kIsAFallbackRank = requires(T value) {
  CoordinateBoxes{.fallback_rank = value};
};

TEST(DistributedGraphTest, BoolsAndIntegersTakeNothingElse) {
  EXPECT_TAKES_BOOL_ONLY(some_graph().get_edge_features_in_partition(some_tensor(), value));
  EXPECT_TAKES_INTEGERS_ONLY(
      some_graph().get_src_node_features_in_partition(some_tensor(), true, value));
  EXPECT_TAKES_BOOL_ONLY(some_graph().get_global_dst_node_features(some_tensor(), value));
  EXPECT_TAKES_INTEGERS_ONLY(some_graph().get_global_edge_features(some_tensor(), true, value));
  EXPECT_TAKES_INTEGERS_ONLY(icosahedral_mesh(value));
  EXPECT_TAKES_BOOL_ONLY(icosahedral_mesh(1, value));
  EXPECT_TAKES_INTEGERS_ONLY(RowMap(some_rows(), value, c10::kCPU));
  EXPECT_TAKES_BOOL_ONLY(GraphEdges{.is_bipartite = value});
  EXPECT_TAKES_BOOL_ONLY(edges_from_csc(some_tensor(), some_tensor(), std::nullopt, value));
}

TEST(DistributedGraphTest, OptionalIntegersTakeNothingElse) {
  EXPECT_TRUE(kIsANumberOfNodes<int> && kIsAFallbackRank<int64_t>);
  EXPECT_TRUE(kIsANumberOfNodes<std::nullopt_t> && kIsAFallbackRank<std::optional<int>>);
  EXPECT_FALSE(kIsANumberOfNodes<bool> || kIsAFallbackRank<bool>);
  EXPECT_FALSE(kIsANumberOfNodes<char> || kIsAFallbackRank<char>);
  EXPECT_FALSE(kIsANumberOfNodes<double> || kIsAFallbackRank<double>);
  EXPECT_FALSE(kIsANumberOfNodes<const char*> || kIsAFallbackRank<const char*>);
  EXPECT_FALSE(kIsANumberOfNodes<std::optional<bool>> || kIsAFallbackRank<std::optional<bool>>);
}

TEST(GraphNetworkTest, OptionsTakeEachForItself) {
  EXPECT_TAKES_INTEGERS_ONLY(GraphNetworkOptions(value, 2, 1));
  EXPECT_TAKES_INTEGERS_ONLY(GraphNetworkOptions(3, value, 1));
  EXPECT_TAKES_INTEGERS_ONLY(GraphNetworkOptions(3, 2, value));
  EXPECT_TAKES_INTEGERS_ONLY(GraphNetworkOptions(3, 2, 1).processor_size(value));
  EXPECT_TAKES_INTEGERS_ONLY(GraphNetworkOptions(3, 2, 1).hidden_dim_processor(value));
  EXPECT_TAKES_INTEGERS_ONLY(MeshGraphMLPImpl(2, 2, 2, value, some_activation(), true));
  EXPECT_TAKES_BOOL_ONLY(MeshGraphMLPImpl(2, 2, 2, 1, some_activation(), value));
}

TEST(DistributedGraphTest, WrongUseIsATypedErrorOnAllRanks) {
  run_in_worlds("graph_wrong", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
