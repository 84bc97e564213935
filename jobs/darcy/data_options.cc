#include "jobs/darcy/data_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace meshrun::darcy {
namespace {

// $XDG_CACHE_HOME/meshrun/darcy, else ~/.cache/meshrun/darcy, else below the working directory.
std::string default_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/meshrun/darcy";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.cache/meshrun/darcy";
  return "darcy-cache";
}

}  // namespace

DataOptions::DataOptions() : cache(default_cache()) {}

void add_data_flags(CLI::App& app, DataOptions& options) {
  app.add_option("--data", options.data,
                 "HDF5 file with /permeability and /pressure, [samples, rows, columns]; empty: "
                 "solve for them");
  app.add_option("--cache", options.cache, "Directory that keeps solved samples");
  app.add_option("--medium", options.medium, "threshold (k is 12 or 3) or lognormal")
      ->check(CLI::IsMember({"threshold", "lognormal"}));
  app.add_option("--size", options.size, "Cells along each side of solved samples")
      ->check(CLI::Range(int64_t{4}, int64_t{2048}));
  app.add_option("--data-seed", options.data_seed, "Of the media")->check(CLI::NonNegativeNumber);
  app.add_option("--train-samples", options.train_samples, "The first of the samples")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  app.add_option("--test-samples", options.test_samples, "Those that follow")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
}

}  // namespace meshrun::darcy
