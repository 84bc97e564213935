// From the permeability of Darcy flow to its pressure by any model from fields to fields:
//
//   pressure(x, y) = scale * 16 x (1 - x) y (1 - y) * network(normalised log k)
//
// The factor is zero on the boundary, as the pressure is. Nothing here knows of ranks: on
// ShardTensors the operators do (parallel/shard).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>

#include "jobs/darcy/data.h"

namespace meshrun::pressure {

// A module from [B, 1, H, W] to the same, and its forward().
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};

template <typename Holder>
Network network_of(Holder holder) {
  return {holder.ptr(), [holder](const at::Tensor& x) mutable { return holder->forward(x); }};
}

// Fields have the samples' columns first: [B, 1, columns, rows], of which the columns may be cut.
class PressureModelImpl : public torch::nn::Module {
 public:
  PressureModelImpl(Network network, const darcy::Samples& samples, c10::Device device);
  at::Tensor forward(const at::Tensor& permeability);

 private:
  const double log_mean_;
  const double log_deviation_;
  const std::function<at::Tensor(const at::Tensor&)> network_;
  // [1, 1, columns, rows]: scale times the factor.
  at::Tensor boundary_;
};
TORCH_MODULE(PressureModel);

}  // namespace meshrun::pressure
