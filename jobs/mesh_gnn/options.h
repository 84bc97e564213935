// The command line of the mesh_gnn job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshrun::mesh_gnn {

struct Options {
  // Of this program, by find_egm96.
  std::string data;
  // Of the icosahedral mesh.
  int64_t level = 4;
  // "metis", "nodewise" or "boxes".
  std::string partition = "metis";
  // The filter's standard deviation, in mean edges of the mesh.
  double smoothing = 0.5;
  int64_t steps = 1500;
  uint64_t seed = 1;
  // The peak of the one-cycle schedule.
  double learning_rate = 3e-3;
  int64_t hidden = 48;
  int64_t blocks = 3;
  double held_out = 0.2;
  // Rotated meshes of the evaluation.
  int64_t evaluation_meshes = 8;
  int64_t log_every = 50;
  // Empty: no checkpoints.
  std::string checkpoint_dir;
  int64_t checkpoint_every = 100;
  int64_t keep_checkpoints = 2;
  bool resume = false;
  // Empty: not written.
  std::string report = "mesh_gnn.json";
  std::string png = "mesh_gnn.png";
  std::string dump_parameters;
  // Neither the error in the held-out regions nor the picture.
  bool no_evaluation = false;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::mesh_gnn
