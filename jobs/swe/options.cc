#include "jobs/swe/options.h"

#include <CLI/CLI.hpp>

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

void add_flags(CLI::App& app, Options& options) {
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
  jobs::add_operator_flags(app, options, "field");
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  return jobs::read_options({kDescription, kExamples}, argc, argv, add_flags);
}

}  // namespace meshrun::swe
