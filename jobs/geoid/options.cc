#include "jobs/geoid/options.h"

#include <CLI/CLI.hpp>

#include "jobs/geoid/gtx.h"

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

void add_flags(CLI::App& app, Options& options) {
  app.add_option("--data", options.data, "GTX file with the field to learn");
  app.add_option("--batch", options.batch, "Points per step, all ranks together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--hidden", options.hidden, "Width of the three hidden layers")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--features", options.features, "Random Fourier features")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--feature-scale", options.feature_scale,
                 "Standard deviation of the features' frequencies, radians per Earth radius")
      ->check(CLI::Range(1e-3, 1e3));
  app.add_option("--held-out", options.held_out, "Share of the points kept for the evaluation")
      ->check(CLI::Range(0.001, 0.9));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  options.data = find_egm96();
  return jobs::read_options({kDescription, kExamples}, argc, argv, add_flags, options);
}

}  // namespace meshrun::geoid
