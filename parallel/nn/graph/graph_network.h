// A message-passing network on a graph that is spread over ranks: encoders of node and edge
// features, blocks that update edges and nodes in turn, a decoder of nodes.
//
//   GraphNetwork network(GraphNetworkOptions(3, 4, 1).processor_size(4).hidden_dim_processor(64));
//   mark_module_as_shared(*network, "graph_parallel");
//   at::Tensor y = network(node_features, edge_features, graph);  // of this rank's nodes
//   (y - target).square().sum().backward();  // gradients are now those of the sum over all nodes
//
// Block: e' = e + edge_mlp([e, source, destination]) for each edge, then n' = n +
// node_mlp([sum of e' over the edges that arrive, n]) for each node. Every MLP has a LayerNorm
// after it, except the decoder. Pfaff et al., "Learning Mesh-Based Simulation with Graph Networks"
// (2020).
//
// The result does not depend on how many ranks share the graph, except for rounding: messages are
// summed in the order of edge ids. A block sends each halo node's row once, already multiplied by
// its part of edge_mlp's first layer; the concatenation is never made.
//
// Every rank holds all parameters, which must start equal: seed alike. With mark_module_as_shared()
// and a loss that is the sum over a rank's own nodes, gradients are those of the whole graph.
//
// Forward and backward are collective over the graph's group. Threads: one at a time.
// Errors: c10::ValueError for options; for wrong features or a bipartite graph
// CollectiveArgumentError, on every rank; those of collectives.
//
// Corresponds to physicsnemo.models.meshgraphnet.MeshGraphNet: parameters have its names and
// shapes, and the options its names and defaults.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <string>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/nn/fully_connected.h"
#include "parallel/nn/graph/distributed_graph.h"

namespace meshrun {

struct GraphNetworkOptions {
  GraphNetworkOptions(IntArgument input_dim_nodes, IntArgument input_dim_edges,
                      IntArgument output_dim)
      : input_dim_nodes_(input_dim_nodes),
        input_dim_edges_(input_dim_edges),
        output_dim_(output_dim) {}

  TORCH_ARG(IntArgument, input_dim_nodes);
  TORCH_ARG(IntArgument, input_dim_edges);
  TORCH_ARG(IntArgument, output_dim);
  // Message passing blocks.
  TORCH_ARG(IntArgument, processor_size) = 15;
  TORCH_ARG(std::string, mlp_activation_fn) = "relu";
  // Hidden layers of each MLP; one linear layer follows them.
  TORCH_ARG(IntArgument, num_layers_node_processor) = 2;
  TORCH_ARG(IntArgument, num_layers_edge_processor) = 2;
  TORCH_ARG(IntArgument, num_layers_node_encoder) = 2;
  TORCH_ARG(IntArgument, num_layers_edge_encoder) = 2;
  TORCH_ARG(IntArgument, num_layers_node_decoder) = 2;
  // Width of nodes and edges between blocks, and of the blocks' hidden layers.
  TORCH_ARG(IntArgument, hidden_dim_processor) = 128;
  TORCH_ARG(IntArgument, hidden_dim_node_encoder) = 128;
  TORCH_ARG(IntArgument, hidden_dim_edge_encoder) = 128;
  TORCH_ARG(IntArgument, hidden_dim_node_decoder) = 128;
  // "sum", or "mean" over the edges that arrive; a node without edges gets zeros.
  TORCH_ARG(std::string, aggregation) = "sum";
};

// Linear layers with an activation after each but the last, then perhaps a LayerNorm. Parameters:
// model.0.weight, model.0.bias, model.2.weight, ...
class MeshGraphMLPImpl : public torch::nn::Module {
 public:
  MeshGraphMLPImpl(IntArgument input_dim, IntArgument output_dim, IntArgument hidden_dim,
                   IntArgument hidden_layers, const Activation& activation, BoolArgument has_norm);

  // x is [rows, input_dim]; returns [rows, output_dim].
  at::Tensor forward(const at::Tensor& x);
  // The same from what the first linear layer makes.
  at::Tensor forward_after_first(at::Tensor x);
  const torch::nn::Linear& first() const { return layers_.front(); }

 private:
  const Activation activation_;
  std::vector<torch::nn::Linear> layers_;
  torch::nn::LayerNorm norm_ = nullptr;
};
TORCH_MODULE(MeshGraphMLP);

class GraphNetworkImpl : public torch::nn::Module {
 public:
  explicit GraphNetworkImpl(const GraphNetworkOptions& options);

  // node_features: [nodes of this rank's partition, input_dim_nodes]; edge_features: [edges of its
  // partition, input_dim_edges]; of the parameters' dtype and device. Returns [nodes, output_dim].
  // Differentiable in both and in the parameters.
  at::Tensor forward(const at::Tensor& node_features, const at::Tensor& edge_features,
                     const DistributedGraph& graph);

  const GraphNetworkOptions& options() const { return options_; }

 private:
  struct Block {
    MeshGraphMLP edge_mlp = nullptr;
    MeshGraphMLP node_mlp = nullptr;
  };
  std::string problem_with(const at::Tensor& nodes, const at::Tensor& edges,
                           const DistributedGraph& graph) const;

  const GraphNetworkOptions options_;
  MeshGraphMLP edge_encoder_ = nullptr;
  MeshGraphMLP node_encoder_ = nullptr;
  MeshGraphMLP node_decoder_ = nullptr;
  std::vector<Block> blocks_;
};
TORCH_MODULE(GraphNetwork);

}  // namespace meshrun
