// The command line of the geoid job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace meshrun::geoid {

struct Options {
  // Of this program, by find_egm96.
  std::string data;
  int64_t steps = 3000;
  // Of all ranks together.
  int64_t batch = 2048;
  uint64_t seed = 1;
  // The peak of the one-cycle schedule.
  double learning_rate = 2e-3;
  int64_t hidden = 256;
  int64_t features = 128;
  double feature_scale = 4;
  double held_out = 0.1;
  int64_t log_every = 100;
  // Empty: no checkpoints.
  std::string checkpoint_dir;
  int64_t checkpoint_every = 500;
  int64_t keep_checkpoints = 2;
  bool resume = false;
  // Empty: not written.
  std::string report = "geoid.json";
  std::string png = "geoid.png";
  std::string dump_parameters;
  // Neither the error on held-out points nor the picture.
  bool no_evaluation = false;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::geoid
