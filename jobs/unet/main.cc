// Learns the pressure of Darcy flow with a U-Net. See unet --help.

#include <CLI/CLI.hpp>
#include <string>

#include "jobs/pressure/job.h"
#include "jobs/runtime/job.h"
#include "parallel/nn/unet.h"

namespace meshrun::unet {
namespace {

constexpr char kDescription[] =
    "Learns the pressure of Darcy flow in a random medium with a U-Net. Trains on a mesh\n"
    "dp x domain: dp groups of ranks share the batch, the ranks of a group share each sample and\n"
    "all its activations; convolutions exchange halos. The result depends on the batch and the\n"
    "seed, not on the mesh. Samples are those of the job darcy.";

constexpr char kExamples[] =
    "Examples:\n"
    "  unet                                                      one process\n"
    "  meshrun run --job unet --nproc 4 --mesh dp=2,domain=2     four ranks on this host\n"
    "  mpirun -n 2 unet --domain 2 --steps 100                   under another launcher\n"
    "  unet --checkpoint-dir ckpt --resume                       go on where the last run stopped";

struct Options : pressure::Options {
  Options() : pressure::Options("unet") {}

  int64_t base_channels = 16;
  int64_t depth = 3;
  int64_t groups = 4;
};

void add_flags(CLI::App& app, Options& options) {
  pressure::add_flags(app, options);
  app.add_option("--base-channels", options.base_channels,
                 "Channels of the finest level; --groups divides them")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  app.add_option("--depth", options.depth, "How many times the grid is halved")
      ->check(CLI::Range(int64_t{0}, int64_t{10}));
  app.add_option("--groups", options.groups, "Groups of the group norms")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
}

void run(const Options& options) {
  const pressure::NetworkFlags flags = {{"--base-channels", std::to_string(options.base_channels)},
                                        {"--depth", std::to_string(options.depth)},
                                        {"--groups", std::to_string(options.groups)}};
  pressure::run(options, flags, [&](int64_t, int64_t) {
    return pressure::network_of(UNet(UNetOptions(1, 1)
                                         .base_channels(options.base_channels)
                                         .depth(options.depth)
                                         .num_groups(options.groups)
                                         .checkpoint_stages(options.recompute)));
  });
}

}  // namespace
}  // namespace meshrun::unet

int main(int argc, char** argv) {
  meshrun::jobs::run_job("unet", [&] {
    using namespace meshrun::unet;
    const auto options =
        meshrun::jobs::read_options<Options>({kDescription, kExamples}, argc, argv, add_flags);
    if (options) run(*options);
  });
}
