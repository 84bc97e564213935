#include "jobs/darcy/options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "jobs/runtime/flags.h"
#include "jobs/runtime/job.h"

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

void add_data_options(CLI::App& app, Options& options) {
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

void add_training_options(CLI::App& app, Options& options) {
  app.add_option("--steps", options.steps, "Training steps")
      ->check(CLI::Range(int64_t{1}, jobs::kMany));
  app.add_option("--batch", options.batch, "Samples per step, all ranks together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  // Without the check a negative number would wrap around.
  app.add_option("--seed", options.seed, "Of the initial network and the batches")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--lr", options.learning_rate, "Peak of the one-cycle learning rate")
      ->check(CLI::Range(1e-9, 10.0));
  app.add_option("--weight-decay", options.weight_decay, "AdamW's")->check(CLI::Range(0.0, 1.0));
  app.add_option("--width", options.width, "Channels of the operator's layers")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  app.add_option("--modes", options.modes, "Wave numbers kept along each side")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  app.add_option("--layers", options.layers, "Fourier layers")
      ->check(CLI::Range(int64_t{1}, int64_t{64}));
  app.add_option("--padding", options.padding,
                 "Cells added along each side, as the field is not periodic")
      ->check(CLI::Range(int64_t{0}, int64_t{1024}));
  app.add_option("--spatial", options.spatial,
                 "Ranks that share a sample, if the launcher gave no mesh")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  options.cache = default_cache();
  CLI::App app(kDescription, "darcy");
  app.footer(kExamples);
  app.option_defaults()->always_capture_default();
  add_data_options(app, options);
  add_training_options(app, options);
  jobs::add_common_flags(app, options);
  app.add_flag("--no-evaluation", options.no_evaluation,
               "End after training: no error on test samples, no picture");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw jobs::UsageError(std::string(error.what()) + " (see darcy --help)");
  }
  if (options.resume && options.checkpoint_dir.empty()) {
    throw jobs::UsageError("--resume needs --checkpoint-dir, the directory to resume from");
  }
  return options;
}

}  // namespace meshrun::darcy
