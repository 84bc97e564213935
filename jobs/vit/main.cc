// Learns the pressure of Darcy flow with a vision transformer. See vit --help.

#include <CLI/CLI.hpp>
#include <string>

#include "jobs/pressure/job.h"
#include "jobs/runtime/job.h"
#include "parallel/nn/vision_transformer.h"

namespace meshrun::vit {
namespace {

constexpr char kDescription[] =
    "Learns the pressure of Darcy flow in a random medium with a vision transformer. Trains on a\n"
    "mesh dp x domain: dp groups of ranks share the batch, the ranks of a group share each sample\n"
    "and all its activations; attention goes around the group in a ring. The result depends on "
    "the\n"
    "batch and the seed, not on the mesh. Samples are those of the job darcy.";

constexpr char kExamples[] =
    "Examples:\n"
    "  vit                                                       one process\n"
    "  meshrun run --job vit --nproc 4 --mesh dp=2,domain=2      four ranks on this host\n"
    "  mpirun -n 2 vit --domain 2 --steps 100                    under another launcher\n"
    "  vit --checkpoint-dir ckpt --resume                        go on where the last run stopped";

struct Options : pressure::Options {
  Options() : pressure::Options("vit") {}

  int64_t patch = 4;
  int64_t embed_dim = 64;
  int64_t depth = 4;
  int64_t heads = 4;
};

void add_flags(CLI::App& app, Options& options) {
  pressure::add_flags(app, options);
  app.add_option("--patch", options.patch, "Cells along each side of a patch")
      ->check(CLI::Range(int64_t{1}, int64_t{256}));
  app.add_option("--embed-dim", options.embed_dim, "Features of a token; --heads divides them")
      ->check(CLI::Range(int64_t{1}, int64_t{8192}));
  app.add_option("--depth", options.depth, "Transformer blocks")
      ->check(CLI::Range(int64_t{0}, int64_t{256}));
  app.add_option("--heads", options.heads, "Attention heads")
      ->check(CLI::Range(int64_t{1}, int64_t{256}));
}

void run(const Options& options) {
  const pressure::NetworkFlags flags = {{"--patch", std::to_string(options.patch)},
                                        {"--embed-dim", std::to_string(options.embed_dim)},
                                        {"--depth", std::to_string(options.depth)},
                                        {"--heads", std::to_string(options.heads)}};
  pressure::run(options, flags, [&](int64_t columns, int64_t rows) {
    return pressure::network_of(VisionTransformer(VisionTransformerOptions({columns, rows}, 1, 1)
                                                      .patch_size({options.patch, options.patch})
                                                      .embed_dim(options.embed_dim)
                                                      .depth(options.depth)
                                                      .num_heads(options.heads)
                                                      .checkpoint_blocks(options.recompute)));
  });
}

}  // namespace
}  // namespace meshrun::vit

int main(int argc, char** argv) {
  meshrun::jobs::run_job("vit", [&] {
    using namespace meshrun::vit;
    const auto options =
        meshrun::jobs::read_options<Options>({kDescription, kExamples}, argc, argv, add_flags);
    if (options) run(*options);
  });
}
