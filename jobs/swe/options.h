// The command line of the swe job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "jobs/runtime/operator_options.h"

namespace meshrun::swe {

struct Options : jobs::OperatorOptions {
  Options() : OperatorOptions("swe") {
    steps = 600;
    learning_rate = 6e-3;
    batch = 8;
    modes = 10;
  }

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
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::swe
