// The command line of the darcy job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshrun::darcy {

struct Options {
  // Empty: samples are made, and kept in `cache`.
  std::string data;
  std::string cache;
  std::string medium = "threshold";
  int64_t size = 64;
  int64_t data_seed = 1;
  int64_t train_samples = 1000;
  int64_t test_samples = 200;

  int64_t steps = 500;
  // Of all ranks together.
  int64_t batch = 16;
  uint64_t seed = 1;
  // The peak of the one-cycle schedule.
  double learning_rate = 8e-3;
  double weight_decay = 1e-4;
  int64_t width = 16;
  int64_t modes = 12;
  int64_t layers = 4;
  int64_t padding = 8;
  // Ranks that share a sample, where the launcher gave no mesh.
  int64_t spatial = 1;

  int64_t log_every = 50;
  // Empty: no checkpoints.
  std::string checkpoint_dir;
  int64_t checkpoint_every = 200;
  int64_t keep_checkpoints = 2;
  bool resume = false;
  // Empty: not written.
  std::string report = "darcy.json";
  std::string png = "darcy.png";
  std::string dump_parameters;
  // Neither the error on test samples nor the picture.
  bool no_evaluation = false;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::darcy
