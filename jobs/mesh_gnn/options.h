// The command line of the mesh_gnn job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "jobs/runtime/training_options.h"

namespace meshrun::mesh_gnn {

struct Options : jobs::TrainingOptions {
  Options() : TrainingOptions("mesh_gnn") {
    steps = 1500;
    learning_rate = 3e-3;
    checkpoint_every = 100;
  }

  // Path of the file with the geoid; by default the one that find_egm96 finds for this program.
  std::string data;
  // Level of the icosahedral mesh.
  int64_t level = 4;
  // "metis", "nodewise" or "boxes".
  std::string partition = "metis";
  // The filter's standard deviation, in mean edges of the mesh.
  double smoothing = 0.5;
  int64_t hidden = 48;
  int64_t blocks = 3;
  double held_out = 0.2;
  // Rotated meshes of the evaluation.
  int64_t evaluation_meshes = 8;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::mesh_gnn
