// The network: the state one interval later.
//
//   network(state) = state + change scales * FNO(state / scales)
//
// Periodic, so without padding; the equations do not depend on the position, so neither does the
// operator.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

#include "jobs/runtime/rank_mesh.h"
#include "jobs/swe/data.h"
#include "jobs/swe/options.h"
#include "parallel/nn/fno.h"

namespace meshrun::swe {

class SweNetworkImpl : public torch::nn::Module {
 public:
  // Collective over the spatial group: the ranks' modules are pieces of one.
  SweNetworkImpl(const Options& options, const Trajectories& trajectories,
                 const jobs::RankMesh& mesh, c10::Device device);

  // This rank's columns of u, v, h - 1: [batch, 3, rows, own columns].
  at::Tensor forward(const at::Tensor& state);

  const at::Tensor& scales() const { return scales_; }
  const at::Tensor& change_scales() const { return change_scales_; }

 private:
  // They follow from the data, and so belong to no checkpoint.
  const at::Tensor scales_;
  const at::Tensor change_scales_;
  const std::vector<int64_t> columns_;  // by rank of the spatial group
  FNO operator_ = nullptr;
};
TORCH_MODULE(SweNetwork);

}  // namespace meshrun::swe
