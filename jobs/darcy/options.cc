#include "jobs/darcy/options.h"

#include <CLI/CLI.hpp>

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

void add_flags(CLI::App& app, Options& options) {
  add_data_flags(app, options);
  jobs::add_operator_flags(app, options, "sample");
  app.add_option("--padding", options.padding,
                 "Cells added along each side, as the field is not periodic")
      ->check(CLI::Range(int64_t{0}, int64_t{1024}));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  return jobs::read_options({kDescription, kExamples}, argc, argv, add_flags, Options());
}

}  // namespace meshrun::darcy
