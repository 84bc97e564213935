// The command line of the geoid job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "jobs/runtime/training_options.h"

namespace meshrun::geoid {

struct Options : jobs::TrainingOptions {
  Options() : TrainingOptions("geoid") {
    steps = 3000;
    learning_rate = 2e-3;
    log_every = 100;
    checkpoint_every = 500;
  }

  // Path of the file with the geoid; by default the one that find_egm96 finds for this program.
  std::string data;
  // Batch of all ranks together.
  int64_t batch = 2048;
  int64_t hidden = 256;
  int64_t features = 128;
  double feature_scale = 4;
  double held_out = 0.1;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::geoid
