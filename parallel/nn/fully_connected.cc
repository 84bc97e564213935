#include "parallel/nn/fully_connected.h"

#include <torch/nn/init.h>

#include <algorithm>
#include <map>
#include <utility>

namespace meshrun {
namespace {

using at::Tensor;

const std::map<std::string, Activation>& activations() {
  static const auto* table = new std::map<std::string, Activation>{
      {"celu", [](const Tensor& x) { return at::celu(x); }},
      {"elu", [](const Tensor& x) { return at::elu(x); }},
      {"gelu", [](const Tensor& x) { return at::gelu(x); }},
      {"hardtanh", [](const Tensor& x) { return at::hardtanh(x); }},
      {"identity", [](const Tensor& x) { return x; }},
      {"leaky_relu", [](const Tensor& x) { return at::leaky_relu(x); }},
      {"logsigmoid", [](const Tensor& x) { return at::log_sigmoid(x); }},
      {"mish", [](const Tensor& x) { return at::mish(x); }},
      {"relu", [](const Tensor& x) { return at::relu(x); }},
      {"relu6", [](const Tensor& x) { return at::relu6(x); }},
      {"selu", [](const Tensor& x) { return at::selu(x); }},
      {"sigmoid", [](const Tensor& x) { return at::sigmoid(x); }},
      {"silu", [](const Tensor& x) { return at::silu(x); }},
      {"softplus", [](const Tensor& x) { return at::softplus(x); }},
      {"softsign", [](const Tensor& x) { return x / (1 + x.abs()); }},
      {"tanh", [](const Tensor& x) { return at::tanh(x); }},
      {"tanhshrink", [](const Tensor& x) { return x - at::tanh(x); }},
  };
  return *table;
}

void check_options(const FullyConnectedOptions& options) {
  TORCH_CHECK_VALUE(options.in_features() > 0 && options.layer_size() > 0 &&
                        options.out_features() > 0 && options.num_layers() > 0,
                    "FullyConnected: in_features, layer_size, out_features and num_layers must be "
                    "positive, got ",
                    options.in_features(), ", ", options.layer_size(), ", ", options.out_features(),
                    " and ", options.num_layers());
  TORCH_CHECK_VALUE(!options.activation_fn().empty(),
                    "FullyConnected: activation_fn must name at least one activation");
}

}  // namespace

Activation get_activation(const std::string& name) {
  const auto found = activations().find(name);
  if (found != activations().end()) return found->second;
  std::string known;
  for (const auto& [each, function] : activations()) known += (known.empty() ? "" : ", ") + each;
  TORCH_CHECK_VALUE(false, "no activation is called \"", name, "\"; there are: ", known);
}

FullyConnectedLayerImpl::FullyConnectedLayerImpl(IntArgument in_features, IntArgument out_features,
                                                 Activation activation)
    : activation_(std::move(activation)) {
  linear_ = register_module("linear", torch::nn::Linear(in_features, out_features));
  reset_parameters();
}

Tensor FullyConnectedLayerImpl::forward(const Tensor& x, const Tensor& scale) {
  const Tensor y = linear_(x);
  return activation_(scale.defined() ? scale * y : y);
}

void FullyConnectedLayerImpl::reset_parameters() {
  torch::nn::init::constant_(linear_->bias, 0);
  torch::nn::init::xavier_uniform_(linear_->weight);
}

FullyConnectedImpl::FullyConnectedImpl(const FullyConnectedOptions& options) : options_(options) {
  check_options(options_);
  if (options_.adaptive_activations()) {
    activation_par_ = register_parameter("activation_par", torch::ones({1}));
  }
  const std::vector<std::string>& names = options_.activation_fn();
  layers_ = register_module("layers", torch::nn::ModuleList());
  int64_t width = options_.in_features();
  for (int64_t i = 0; i < options_.num_layers(); ++i) {
    const std::string& name = names[std::min<size_t>(i, names.size() - 1)];
    layers_->push_back(FullyConnectedLayer(width, options_.layer_size(), get_activation(name)));
    width = options_.layer_size();
  }
  final_layer_ = register_module("final_layer", FullyConnectedLayer(width, options_.out_features(),
                                                                    get_activation("identity")));
}

Tensor FullyConnectedImpl::forward(const Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() >= 2 && x.size(-1) == options_.in_features(),
                    "FullyConnected: expected an input of shape [batch..., ",
                    options_.in_features(), "], got ", x.sizes());
  Tensor y = x;
  Tensor skip;
  for (int64_t i = 0; i < options_.num_layers(); ++i) {
    y = layers_->at<FullyConnectedLayerImpl>(i).forward(y, activation_par_);
    if (!options_.skip_connections() || i % 2 != 0) continue;
    Tensor sum = skip.defined() ? y + skip : y;
    skip = std::exchange(y, std::move(sum));
  }
  return final_layer_(y);
}

}  // namespace meshrun
