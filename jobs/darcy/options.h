// The command line of the darcy job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "jobs/runtime/operator_options.h"

namespace meshrun::darcy {

struct Options : jobs::OperatorOptions {
  Options() : OperatorOptions("darcy") {
    steps = 500;
    learning_rate = 8e-3;
  }

  // Empty: samples are made, and kept in `cache`.
  std::string data;
  std::string cache;
  std::string medium = "threshold";
  int64_t size = 64;
  int64_t data_seed = 1;
  int64_t train_samples = 1000;
  int64_t test_samples = 200;
  // Cells added along each side of a field.
  int64_t padding = 8;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::darcy
