// The samples of a run, cut among the ranks that share them.
//
// Samples come from the user's file, from the cache, or from the solver: then every rank of the
// world solves a share, and rank 0 keeps the result. Only rank 0 sees the files; it hands the
// samples out. So the data are the same on any number of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "jobs/darcy/data_file.h"
#include "jobs/darcy/data_options.h"
#include "jobs/runtime/rank_mesh.h"

namespace meshrun::darcy {

// What solved samples depend on, as text: it names the cache's file and is kept in it.
std::string parameters_of(const DataOptions& options);
// The cache's file for these parameters.
std::string cache_path(const DataOptions& options);

struct Samples {
  // Whole samples have this shape.
  DataShape shape;
  // How the samples came to be: equal for equal samples.
  std::string origin;
  // This rank's columns of all samples, the training's first; float32 on the CPU.
  at::Tensor permeability;  // [samples, rows, own columns]
  at::Tensor pressure;
  // Euclidean norm of the pressure of each whole sample, [samples] float32.
  at::Tensor pressure_norm;
  // Over the training's samples.
  double log_permeability_mean = 0;
  double log_permeability_deviation = 1;
  double pressure_root_mean_square = 1;
  double seconds = 0;
  bool solved = false;  // by this call
};

// Collective over the world. Raises DataError or SolverError with the same sentence on every rank.
Samples load_samples(const DataOptions& options, const jobs::RankMesh& mesh);

}  // namespace meshrun::darcy
