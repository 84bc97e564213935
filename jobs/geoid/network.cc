#include "jobs/geoid/network.h"

namespace meshrun::geoid {
namespace {

constexpr int64_t kDimensions = 3;
constexpr int64_t kHiddenLayers = 3;

}  // namespace

GeoidNetworkImpl::GeoidNetworkImpl(int64_t features, double scale, int64_t hidden) {
  frequencies_ = register_buffer("frequencies", scale * torch::randn({kDimensions, features}));
  perceptron_ =
      register_module("perceptron", FullyConnected(FullyConnectedOptions()
                                                       .in_features(kDimensions + 2 * features)
                                                       .layer_size(hidden)
                                                       .out_features(1)
                                                       .num_layers(kHiddenLayers)));
}

at::Tensor GeoidNetworkImpl::forward(const at::Tensor& positions) {
  const at::Tensor phases = at::matmul(positions, frequencies_);
  const at::Tensor inputs = at::cat({positions, phases.sin(), phases.cos()}, /*dim=*/1);
  return perceptron_(inputs).squeeze(1);
}

}  // namespace meshrun::geoid
