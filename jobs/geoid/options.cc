#include "jobs/geoid/options.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "jobs/geoid/gtx.h"
#include "jobs/runtime/flags.h"
#include "jobs/runtime/job.h"

namespace meshrun::geoid {
namespace {

constexpr char kDescription[] =
    "Learns the Earth's geoid (EGM96): the height of mean sea level above the ellipsoid, as a\n"
    "function of the point on the sphere. Trains in data parallel on as many ranks as it is\n"
    "started with; the result depends on the batch and the seed, not on the number of ranks.";

constexpr char kExamples[] =
    "Examples:\n"
    "  geoid                                          one process\n"
    "  meshrun run --nproc-per-node 2 --job geoid     two ranks on this host\n"
    "  mpirun -n 2 geoid --steps 300                  a shorter run under another launcher\n"
    "  geoid --checkpoint-dir ckpt --resume           go on where the last run stopped";

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  std::error_code ignored;
  options.data = find_egm96(std::filesystem::read_symlink("/proc/self/exe", ignored));
  CLI::App app(kDescription, "geoid");
  app.footer(kExamples);
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "GTX file with the field to learn");
  app.add_option("--steps", options.steps, "Training steps")
      ->check(CLI::Range(int64_t{1}, jobs::kMany));
  app.add_option("--batch", options.batch, "Points per step, all ranks together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  // Without the check a negative number would wrap around.
  app.add_option("--seed", options.seed, "Of the initial network and the batches")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--lr", options.learning_rate, "Peak of the one-cycle learning rate")
      ->check(CLI::Range(1e-9, 10.0));
  app.add_option("--hidden", options.hidden, "Width of the three hidden layers")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--features", options.features, "Random Fourier features")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--feature-scale", options.feature_scale,
                 "Standard deviation of the features' frequencies, radians per Earth radius")
      ->check(CLI::Range(1e-3, 1e3));
  app.add_option("--held-out", options.held_out, "Share of the points kept for the evaluation")
      ->check(CLI::Range(0.001, 0.9));
  jobs::add_common_flags(app, options);
  app.add_flag("--no-evaluation", options.no_evaluation,
               "End after training: no held-out RMSE, no picture");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw jobs::UsageError(std::string(error.what()) + " (see geoid --help)");
  }
  if (options.resume && options.checkpoint_dir.empty()) {
    throw jobs::UsageError("--resume needs --checkpoint-dir, the directory to resume from");
  }
  return options;
}

}  // namespace meshrun::geoid
