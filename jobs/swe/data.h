// The trajectories of a run, which the solver makes on the mesh: the groups along dp share the
// trajectories, and the ranks of a group each field. The data are the same on any mesh, up to the
// rounding of float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "jobs/runtime/rank_mesh.h"
#include "jobs/swe/options.h"

namespace meshrun::swe {

class SolverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Trajectories {
  // What the data depend on, as text.
  std::string origin;
  // This rank's columns: u, v and the depth less its mean, float32 on the CPU.
  at::Tensor states;  // [trajectories, intervals + 1, 3, size, own columns], the training's first
  // Root mean squares of the variables and of their change in an interval, over the training's
  // trajectories: [3, 1, 1] float32.
  at::Tensor scales;
  at::Tensor change_scales;
  double seconds = 0;
};

// Collective over the world. Raises SolverError with the same sentence on every rank where the
// solution blows up.
Trajectories make_trajectories(const Options& options, const jobs::RankMesh& mesh,
                               c10::Device device);

}  // namespace meshrun::swe
