// The options of jobs that learn the pressure of Darcy flow with an ordinary model on a mesh
// dp x domain.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "jobs/darcy/data_options.h"
#include "jobs/runtime/training_options.h"

namespace meshrun::pressure {

struct Options : jobs::TrainingOptions, darcy::DataOptions {
  explicit Options(const std::string& job) : TrainingOptions(job) { steps = 500; }

  // Batch of all ranks together.
  int64_t batch = 16;
  double weight_decay = 1e-4;
  // Ranks that share a sample, where the launcher gave no mesh.
  int64_t domain = 1;
  // Activations within the model's blocks are computed again in the backward pass.
  bool recompute = false;
};

void add_flags(CLI::App& app, Options& options);

}  // namespace meshrun::pressure
