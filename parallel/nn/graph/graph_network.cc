#include "parallel/nn/graph/graph_network.h"

#include <ATen/ATen.h>

#include <memory>
#include <utility>

#include "parallel/collectives/all_reduce.h"

namespace meshrun {
namespace {

using at::Tensor;

void check_options(const GraphNetworkOptions& options) {
  const std::pair<const char*, int64_t> positive[] = {
      {"input_dim_nodes", options.input_dim_nodes()},
      {"input_dim_edges", options.input_dim_edges()},
      {"output_dim", options.output_dim()},
      {"processor_size", options.processor_size()},
      {"num_layers_node_processor", options.num_layers_node_processor()},
      {"num_layers_edge_processor", options.num_layers_edge_processor()},
      {"num_layers_node_encoder", options.num_layers_node_encoder()},
      {"num_layers_edge_encoder", options.num_layers_edge_encoder()},
      {"num_layers_node_decoder", options.num_layers_node_decoder()},
      {"hidden_dim_processor", options.hidden_dim_processor()},
      {"hidden_dim_node_encoder", options.hidden_dim_node_encoder()},
      {"hidden_dim_edge_encoder", options.hidden_dim_edge_encoder()},
      {"hidden_dim_node_decoder", options.hidden_dim_node_decoder()},
  };
  for (const auto& [name, value] : positive) {
    TORCH_CHECK_VALUE(value > 0, "GraphNetwork: ", name, " must be positive, got ", value);
  }
  TORCH_CHECK_VALUE(options.aggregation() == "sum" || options.aggregation() == "mean",
                    "GraphNetwork: aggregation is \"sum\" or \"mean\", got \"",
                    options.aggregation(), "\"");
}

// A module that only holds others, under the names that physicsnemo's containers give them.
std::shared_ptr<torch::nn::Module> container() { return std::make_shared<torch::nn::Module>(); }

std::string check_features(const char* name, const Tensor& features, int64_t rows, int64_t columns,
                           const Tensor& like) {
  if (features.defined() && features.sizes() == at::IntArrayRef({rows, columns}) &&
      features.scalar_type() == like.scalar_type() && features.device() == like.device()) {
    return {};
  }
  const std::string got = features.defined() ? c10::str(features.sizes(), " of ", features.dtype(),
                                                        " on ", features.device())
                                             : "none";
  return c10::str("GraphNetwork: ", name, " of shape [", rows, ", ", columns, "] of ", like.dtype(),
                  " on ", like.device(), " are expected, got ", got);
}

}  // namespace

MeshGraphMLPImpl::MeshGraphMLPImpl(IntArgument input_dim, IntArgument output_dim,
                                   IntArgument hidden_dim, IntArgument hidden_layers,
                                   const Activation& activation, BoolArgument has_norm)
    : activation_(activation) {
  const auto model = register_module("model", container());
  int64_t width = input_dim;
  for (int64_t i = 0; i <= hidden_layers; ++i) {
    const int64_t next = i == hidden_layers ? output_dim : hidden_dim;
    layers_.emplace_back(width, next);
    model->register_module(std::to_string(2 * i), layers_.back());
    width = next;
  }
  if (has_norm) {
    norm_ = model->register_module(std::to_string(2 * hidden_layers + 1),
                                   torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  }
}

Tensor MeshGraphMLPImpl::forward(const Tensor& x) {
  return forward_after_first(layers_.front()->forward(x));
}

Tensor MeshGraphMLPImpl::forward_after_first(Tensor x) {
  for (size_t i = 1; i < layers_.size(); ++i) x = layers_[i]->forward(activation_(x));
  return norm_ ? norm_->forward(x) : x;
}

GraphNetworkImpl::GraphNetworkImpl(const GraphNetworkOptions& options) : options_(options) {
  check_options(options_);
  const Activation activation = get_activation(options_.mlp_activation_fn());
  const int64_t width = options_.hidden_dim_processor();
  edge_encoder_ = register_module(
      "edge_encoder",
      MeshGraphMLP(options_.input_dim_edges(), width, options_.hidden_dim_edge_encoder(),
                   options_.num_layers_edge_encoder(), activation, true));
  node_encoder_ = register_module(
      "node_encoder",
      MeshGraphMLP(options_.input_dim_nodes(), width, options_.hidden_dim_node_encoder(),
                   options_.num_layers_node_encoder(), activation, true));
  node_decoder_ = register_module(
      "node_decoder", MeshGraphMLP(width, options_.output_dim(), options_.hidden_dim_node_decoder(),
                                   options_.num_layers_node_decoder(), activation, false));
  const auto processor = register_module("processor", container());
  const auto layers = processor->register_module("processor_layers", container());
  for (int64_t i = 0; i < options_.processor_size(); ++i) {
    Block block;
    block.edge_mlp =
        layers->register_module(std::to_string(2 * i), container())
            ->register_module("edge_mlp",
                              MeshGraphMLP(3 * width, width, width,
                                           options_.num_layers_edge_processor(), activation, true));
    block.node_mlp =
        layers->register_module(std::to_string(2 * i + 1), container())
            ->register_module("node_mlp",
                              MeshGraphMLP(2 * width, width, width,
                                           options_.num_layers_node_processor(), activation, true));
    blocks_.push_back(std::move(block));
  }
}

std::string GraphNetworkImpl::problem_with(const Tensor& nodes, const Tensor& edges,
                                           const DistributedGraph& graph) const {
  const GraphPartition& part = graph.partition();
  if (part.is_bipartite) {
    return "GraphNetwork: the graph is bipartite; one set of nodes is expected";
  }
  const Tensor& like = node_encoder_->first()->weight;
  std::string problem = check_features("node features", nodes, part.num_local_dst_nodes(),
                                       options_.input_dim_nodes(), like);
  if (problem.empty()) {
    problem = check_features("edge features", edges, part.num_local_indices(),
                             options_.input_dim_edges(), like);
  }
  return problem;
}

Tensor GraphNetworkImpl::forward(const Tensor& node_features, const Tensor& edge_features,
                                 const DistributedGraph& graph) {
  const std::string problem = problem_with(node_features, edge_features, graph);
  if (!problem.empty()) {
    detail::raise_on_all_ranks(graph.group(), graph.device().type(), problem);
  }
  const int64_t width = options_.hidden_dim_processor();
  Tensor edges = edge_encoder_(edge_features);
  Tensor nodes = node_encoder_(node_features);
  Tensor degrees;
  if (options_.aggregation() == "mean") {
    degrees = graph.destinations().counts().clamp_min(1).to(nodes.scalar_type()).unsqueeze(1);
  }
  for (Block& block : blocks_) {
    // The first layer's columns are for the edge, its source, its destination. Nodes are multiplied
    // where they are owned, before they travel.
    const torch::nn::Linear& first = block.edge_mlp->first();
    const auto columns = [&](int64_t part) { return first->weight.narrow(1, part * width, width); };
    const Tensor sources =
        graph.get_src_node_features_in_local_graph(at::linear(nodes, columns(1)));
    const Tensor from_edges = at::linear(edges, columns(0), first->bias);
    const Tensor hidden = from_edges + graph.sources().gather(sources) +
                          graph.destinations().gather(at::linear(nodes, columns(2)));
    edges = edges + block.edge_mlp->forward_after_first(hidden);
    Tensor messages = graph.destinations().sum(edges);
    if (degrees.defined()) messages = messages / degrees;
    nodes = nodes + block.node_mlp(at::cat({messages, nodes}, 1));
  }
  return node_decoder_(nodes);
}

}  // namespace meshrun
