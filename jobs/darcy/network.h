// The network: a Fourier neural operator from the permeability to the pressure.
//
//   pressure(x, y) = scale * 16 x (1 - x) y (1 - y) * FNO(normalised log k)
//
// The factor is zero on the boundary, as the pressure is. Li et al., "Fourier Neural Operator for
// Parametric Partial Differential Equations" (2021).
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "jobs/darcy/data.h"
#include "jobs/darcy/options.h"
#include "jobs/runtime/rank_mesh.h"
#include "parallel/nn/fno.h"

namespace meshrun::darcy {

class DarcyNetworkImpl : public torch::nn::Module {
 public:
  // Collective over the spatial group: the ranks' modules are pieces of one.
  DarcyNetworkImpl(const Options& options, const Samples& samples, const jobs::RankMesh& mesh,
                   c10::Device device);

  // This rank's columns: permeability [batch, rows, own columns]; returns the pressure there.
  at::Tensor forward(const at::Tensor& permeability);

 private:
  const double log_mean_;
  const double log_deviation_;
  // [rows, own columns]: scale times the factor. Different on each rank, so no buffer.
  at::Tensor boundary_;
  std::vector<int64_t> columns_;  // by rank of the spatial group
  FNO operator_ = nullptr;
};
TORCH_MODULE(DarcyNetwork);

}  // namespace meshrun::darcy
