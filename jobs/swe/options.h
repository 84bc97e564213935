// The command line of the swe job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshrun::swe {

struct Options {
  // Points along each side.
  int64_t size = 48;
  int64_t data_seed = 1;
  double coriolis = 1;
  double damping = 1;
  // The time that one step of the network spans.
  double interval = 0.5;
  // Intervals of a trajectory, and of the rollout on test trajectories.
  int64_t intervals = 12;
  int64_t train_trajectories = 40;
  int64_t test_trajectories = 8;

  int64_t steps = 600;
  // Of all ranks together.
  int64_t batch = 8;
  uint64_t seed = 1;
  // The peak of the one-cycle schedule.
  double learning_rate = 6e-3;
  double weight_decay = 1e-4;
  int64_t width = 16;
  int64_t modes = 10;
  int64_t layers = 4;
  // Ranks that share a field, where the launcher gave no mesh.
  int64_t spatial = 1;

  int64_t log_every = 50;
  // Empty: no checkpoints.
  std::string checkpoint_dir;
  int64_t checkpoint_every = 200;
  int64_t keep_checkpoints = 2;
  bool resume = false;
  // Empty: not written.
  std::string report = "swe.json";
  std::string png = "swe.png";
  std::string dump_parameters;
  // Neither the errors on test trajectories nor the picture.
  bool no_evaluation = false;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::swe
