// The network: random Fourier features of the position, then a perceptron with SiLU.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "parallel/nn/fully_connected.h"

namespace meshrun::geoid {

// Tancik et al., "Fourier Features Let Networks Learn High Frequency Functions in Low Dimensional
// Domains" (2020). The frequencies are drawn from a normal distribution and not trained.
class GeoidNetworkImpl : public torch::nn::Module {
 public:
  // `scale`: standard deviation of the frequencies, in radians per Earth radius.
  GeoidNetworkImpl(int64_t features, double scale, int64_t hidden);

  // positions [n, 3] on the unit sphere; returns the normalised undulation [n].
  at::Tensor forward(const at::Tensor& positions);

 private:
  at::Tensor frequencies_;  // [3, features]
  FullyConnected perceptron_ = nullptr;
};
TORCH_MODULE(GeoidNetwork);

}  // namespace meshrun::geoid
