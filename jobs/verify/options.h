// The command line of the job `verify`.
#pragma once

#include <optional>
#include <string>

namespace meshrun::verify {

struct Options {
  // Where a checkpoint is written; absolute.
  std::string directory = ".";
  // JSON; absolute; empty: none.
  std::string report = "meshrun-verify.json";
  // What gpu-check ended with: "passed", "failed" or "no-gpu"; empty: it was not called.
  std::string gpu_check;
};

// Absent where --help was asked for and has been printed. Raises jobs::UsageError.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace meshrun::verify
