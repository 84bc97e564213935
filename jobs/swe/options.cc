#include "jobs/swe/options.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "jobs/runtime/flags.h"
#include "jobs/runtime/job.h"

namespace meshrun::swe {
namespace {

constexpr char kDescription[] =
    "Learns to step rotating shallow water in time with a Fourier neural operator. Trains on a "
    "mesh\n"
    "dp x spatial: dp groups of ranks share the batch, the ranks of a group share each field. The\n"
    "result depends on the batch and the seed, not on the mesh. Trajectories come from a\n"
    "pseudo-spectral solver that runs on the same mesh.";

constexpr char kExamples[] =
    "Examples:\n"
    "  swe                                                       one process\n"
    "  meshrun run --job swe --nproc 4 --mesh dp=2,spatial=2     four ranks on this host\n"
    "  mpirun -n 2 swe --spatial 2 --steps 100                   under another launcher\n"
    "  swe --checkpoint-dir ckpt --resume                        go on where the last run stopped";

void add_data_options(CLI::App& app, Options& options) {
  app.add_option("--size", options.size, "Points along each side of the square")
      ->check(CLI::Range(int64_t{4}, int64_t{4096}));
  app.add_option("--data-seed", options.data_seed, "Of the initial states")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--coriolis", options.coriolis, "The Coriolis parameter; waves have speed 1")
      ->check(CLI::Range(-100.0, 100.0));
  app.add_option("--damping", options.damping, "Rate at which the largest wave number is damped")
      ->check(CLI::Range(0.0, 10.0));
  app.add_option("--interval", options.interval, "Time that the network learns to step over")
      ->check(CLI::Range(1e-6, 100.0));
  app.add_option("--intervals", options.intervals, "Intervals of a trajectory and of the rollout")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}));
  app.add_option("--train-trajectories", options.train_trajectories, "The first ones")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}));
  app.add_option("--test-trajectories", options.test_trajectories, "Those that follow")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}));
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
  app.add_option("--spatial", options.spatial,
                 "Ranks that share a field, if the launcher gave no mesh")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(kDescription, "swe");
  app.footer(kExamples);
  app.option_defaults()->always_capture_default();
  add_data_options(app, options);
  add_training_options(app, options);
  jobs::add_common_flags(app, options);
  app.add_flag("--no-evaluation", options.no_evaluation,
               "End after training: no errors on test trajectories, no picture");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help() << std::flush;
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw jobs::UsageError(std::string(error.what()) + " (see swe --help)");
  }
  if (options.resume && options.checkpoint_dir.empty()) {
    throw jobs::UsageError("--resume needs --checkpoint-dir, the directory to resume from");
  }
  return options;
}

}  // namespace meshrun::swe
