#include "jobs/mesh_gnn/options.h"

#include <CLI/CLI.hpp>

#include "jobs/geoid/gtx.h"

namespace meshrun::mesh_gnn {
namespace {

constexpr char kDescription[] =
    "Learns the slope of the Earth's geoid (EGM96) from its height at the nodes of an icosahedral\n"
    "mesh, with a message-passing network on the mesh's graph. The graph is split over as many\n"
    "ranks as the job is started with; the result does not depend on their number.";

constexpr char kExamples[] =
    "Examples:\n"
    "  mesh_gnn                                          one process\n"
    "  meshrun run --nproc-per-node 2 --job mesh_gnn     two ranks on this host\n"
    "  mpirun -n 4 mesh_gnn --level 5 --partition boxes  a finer mesh under another launcher\n"
    "  mesh_gnn --checkpoint-dir ckpt --resume           go on where the last run stopped";

constexpr char kSeeded[] = "the initial network and the meshes' rotations";

void add_flags(CLI::App& app, Options& options) {
  app.add_option("--data", options.data, "GTX file with the geoid");
  app.add_option("--level", options.level, "Of the mesh: 10 * 4^level + 2 nodes")
      ->check(CLI::Range(int64_t{1}, int64_t{8}));
  app.add_option("--partition", options.partition, "How nodes go to ranks")
      ->check(CLI::IsMember({"metis", "nodewise", "boxes"}));
  app.add_option("--smoothing", options.smoothing,
                 "Standard deviation of the filter that the geoid passes, in edges of the mesh")
      ->check(CLI::Range(0.1, 10.0));
  app.add_option("--hidden", options.hidden, "Width of the network")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  app.add_option("--blocks", options.blocks, "Message-passing blocks")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
  app.add_option("--held-out", options.held_out, "Share of the Earth kept for the evaluation")
      ->check(CLI::Range(0.02, 0.9));
  app.add_option("--evaluation-meshes", options.evaluation_meshes,
                 "Rotated meshes that the evaluation averages over")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}));
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  options.data = geoid::find_egm96();
  return jobs::read_options({kDescription, kExamples, kSeeded}, argc, argv, add_flags, options);
}

}  // namespace meshrun::mesh_gnn
