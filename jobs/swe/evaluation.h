// How well the network continues trajectories that it was not trained on.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/runtime/rank_mesh.h"
#include "jobs/swe/data.h"
#include "jobs/swe/network.h"

namespace meshrun::swe {

// Both are collective over the world and return the same on every rank.

// Relative L2 errors of the state (training.h), means over trajectories; beside each that of
// persistence, which says that nothing changes.
struct TestErrors {
  // From every true state of a trajectory to the next.
  double one_step = 0;
  double one_step_persistence = 0;
  // By number of steps from a trajectory's first state, without seeing another one.
  std::vector<double> rollout;
  std::vector<double> rollout_persistence;
};
// Errors on trajectories [first, first + count).
TestErrors evaluate(SweNetwork& network, const Trajectories& trajectories, int64_t first,
                    int64_t count, const jobs::RankMesh& mesh, c10::Device device);

// Whole fields of the depth less its mean in a rollout, row-major.
struct Shown {
  int64_t size = 0;
  struct Moment {
    int64_t steps = 0;
    std::vector<float> truth;
    std::vector<float> predicted;
  };
  std::vector<Moment> moments;
};
Shown show(SweNetwork& network, const Trajectories& trajectories, int64_t trajectory,
           const jobs::RankMesh& mesh, c10::Device device);

}  // namespace meshrun::swe
