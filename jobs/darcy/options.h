// The command line of the darcy job.
#pragma once

#include <cstdint>
#include <optional>

#include "jobs/darcy/data_options.h"
#include "jobs/runtime/operator_options.h"

namespace meshrun::darcy {

struct Options : jobs::OperatorOptions, DataOptions {
  Options() : OperatorOptions("darcy") {
    steps = 500;
    learning_rate = 8e-3;
  }

  // Cells added along each side of a field.
  int64_t padding = 8;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError, which says which
// flag is wrong and why.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::darcy
