// A multi-layer perceptron: the plain network of scientific machine learning.
//
//   FullyConnected network(FullyConnectedOptions().in_features(3).out_features(1));
//   torch::Tensor y = network(torch::randn({128, 3}));  // [128, 1]
//
// Parameters are named and initialised (Xavier uniform weights, zero biases) as those of
// PhysicsNeMo's physicsnemo.models.mlp.FullyConnected, so a state dictionary written by one is read
// by the other; adaptive activations are the exception, see below.
//
// Errors: c10::ValueError for options and inputs that do not fit, with both sides' values.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel/base/arguments.h"

namespace meshrun {

// Elementwise function of a tensor, by the name PhysicsNeMo knows it by: "silu", "relu", "gelu",
// "tanh", "sigmoid", "elu", "celu", "selu", "leaky_relu", "relu6", "softplus", "logsigmoid",
// "softsign", "tanhshrink", "hardtanh", "mish", "identity". Raises c10::ValueError, listing them,
// for any other.
using Activation = std::function<at::Tensor(const at::Tensor&)>;
Activation get_activation(const std::string& name);

struct FullyConnectedOptions {
  TORCH_ARG(IntArgument, in_features) = 512;
  // Features of every hidden layer.
  TORCH_ARG(IntArgument, layer_size) = 512;
  TORCH_ARG(IntArgument, out_features) = 512;
  // Hidden layers; one linear layer without activation follows them.
  TORCH_ARG(IntArgument, num_layers) = 6;
  // One name per hidden layer; the last one serves all layers that follow.
  TORCH_ARG(std::vector<std::string>, activation_fn) = {"silu"};
  // Adds the output of hidden layer i - 2 to that of layer i, for i = 2, 4, ...
  TORCH_ARG(BoolArgument, skip_connections) = false;
  // One learnt factor, initially 1, scales the input of every activation. Registered once, as
  // "activation_par"; PhysicsNeMo's state dictionaries repeat it under every layer.
  TORCH_ARG(BoolArgument, adaptive_activations) = false;
};

// y = activation(scale * (x W^T + b)); x is [..., in_features], y is [..., out_features].
class FullyConnectedLayerImpl : public torch::nn::Module {
 public:
  FullyConnectedLayerImpl(IntArgument in_features, IntArgument out_features, Activation activation);

  // `scale` undefined means 1.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& scale = {});
  // Xavier uniform weights, zero bias.
  void reset_parameters();

 private:
  torch::nn::Linear linear_ = nullptr;
  Activation activation_;
};
TORCH_MODULE(FullyConnectedLayer);

class FullyConnectedImpl : public torch::nn::Module {
 public:
  explicit FullyConnectedImpl(const FullyConnectedOptions& options = {});

  // x is [batch..., in_features], at least two-dimensional; returns [batch..., out_features] of the
  // same dtype. Differentiable in x and in the parameters.
  at::Tensor forward(const at::Tensor& x);

  const FullyConnectedOptions& options() const { return options_; }

 private:
  FullyConnectedOptions options_;
  torch::nn::ModuleList layers_ = nullptr;
  FullyConnectedLayer final_layer_ = nullptr;
  at::Tensor activation_par_;
};
TORCH_MODULE(FullyConnected);

}  // namespace meshrun
