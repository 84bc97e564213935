#include "jobs/darcy/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

namespace meshrun::darcy {
namespace {

constexpr char kDescription[] =
    "Learns the pressure of Darcy flow in a random medium with a Fourier neural operator. Trains\n"
    "on a mesh dp x spatial: dp groups of ranks share the batch, the ranks of a group share each\n"
    "sample. The result depends on the batch and the seed, not on the mesh. Samples come from a\n"
    "finite-volume solver and are kept, or from an HDF5 file.";

constexpr char kExamples[] =
    "Examples:\n"
    "  darcy                                                       one process\n"
    "  meshrun run --job darcy --nproc 4 --mesh dp=2,spatial=2     four ranks on this host\n"
    "  mpirun -n 2 darcy --spatial 2 --steps 100                   under another launcher\n"
    "  darcy --data flow.h5 --train-samples 900 --test-samples 100 samples of your own\n"
    "  darcy --checkpoint-dir ckpt --resume                        go on where the last run "
    "stopped";

// $XDG_CACHE_HOME/meshrun/darcy, else ~/.cache/meshrun/darcy, else below the working directory.
std::string default_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/meshrun/darcy";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.cache/meshrun/darcy";
  return "darcy-cache";
}

void add_flags(CLI::App& app, Options& options) {
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
  jobs::add_operator_flags(app, options, "sample");
  app.add_option("--padding", options.padding,
                 "Cells added along each side, as the field is not periodic")
      ->check(CLI::Range(int64_t{0}, int64_t{1024}));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  options.cache = default_cache();
  return jobs::read_options({kDescription, kExamples}, argc, argv, add_flags, options);
}

}  // namespace meshrun::darcy
