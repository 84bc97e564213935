// The options of jobs that train a neural operator on a mesh of ranks (rank_mesh.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "jobs/runtime/training_options.h"

namespace meshrun::jobs {

struct OperatorOptions : TrainingOptions {
  using TrainingOptions::TrainingOptions;

  // Batch of all ranks together.
  int64_t batch = 16;
  double weight_decay = 1e-4;
  int64_t width = 16;
  int64_t modes = 12;
  int64_t layers = 4;
  // Ranks that share a sample, where the launcher gave no mesh.
  int64_t spatial = 1;
};

// `sample`: what the job calls one, "field".
void add_operator_flags(CLI::App& app, OperatorOptions& options, const std::string& sample);

// The flags that change the result, with their values. The mesh is absent: any continues what any
// other has begun.
std::map<std::string, std::string> identity_of(const OperatorOptions& options);

}  // namespace meshrun::jobs
