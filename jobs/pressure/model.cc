#include "jobs/pressure/model.h"

#include <utility>

namespace meshrun::pressure {
namespace {

using at::Tensor;

// Zero at both ends of the unit interval, at the centres of its cells.
Tensor vanishing(int64_t cells) {
  const Tensor centres = (at::arange(cells, at::kFloat) + 0.5) / static_cast<double>(cells);
  return 4 * centres * (1 - centres);
}

}  // namespace

PressureModelImpl::PressureModelImpl(Network network, const darcy::Samples& samples,
                                     c10::Device device)
    : log_mean_(samples.log_permeability_mean),
      log_deviation_(samples.log_permeability_deviation),
      network_(std::move(network.forward)) {
  register_module("network", std::move(network.module));
  boundary_ = (samples.pressure_root_mean_square *
               at::outer(vanishing(samples.shape.columns), vanishing(samples.shape.rows)))
                  .view({1, 1, samples.shape.columns, samples.shape.rows})
                  .to(device);
  to(device);
}

Tensor PressureModelImpl::forward(const Tensor& permeability) {
  return network_((permeability.log() - log_mean_) / log_deviation_) * boundary_;
}

}  // namespace meshrun::pressure
