// Learns the slope of the Earth's geoid with a graph network whose mesh is split over all ranks.
// See mesh_gnn --help.

#include <ATen/Context.h>

#include <string>

#include "jobs/geoid/gtx.h"
#include "jobs/mesh_gnn/evaluation.h"
#include "jobs/mesh_gnn/options.h"
#include "jobs/mesh_gnn/report.h"
#include "jobs/mesh_gnn/training.h"
#include "jobs/runtime/elastic.h"
#include "jobs/runtime/job.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/shared_module.h"

namespace meshrun::mesh_gnn {
namespace {

Outcome outcome_of(const GeoidMesh& mesh) {
  const GraphPartition& part = mesh.graph().partition();
  Outcome outcome;
  outcome.nodes = mesh.num_nodes();
  outcome.edges = part.num_edges;
  outcome.edge_degrees = mesh.edge_radians() / kDegree;
  outcome.own_nodes = part.num_dst_nodes_in_each_partition;
  for (size_t to = 0; to < part.sizes.size(); ++to) {
    int64_t halo = 0;
    for (size_t from = 0; from < part.sizes.size(); ++from) {
      if (from != to) halo += part.sizes[from][to];
    }
    outcome.halo_nodes.push_back(halo);
  }
  return outcome;
}

void run_in_world(ElasticContext& elastic, const IcosahedralMesh& sphere, const SmoothGeoid& geoid,
                  const Options& options) {
  DistributedManager& manager = DistributedManager::get();
  const GeoidMesh mesh(sphere, geoid, options.partition, options.held_out, manager.device());

  at::manual_seed(options.seed);
  GraphNetwork network = make_network(options);
  network->to(manager.device());
  mark_module_as_shared(*network);

  Outcome outcome = outcome_of(mesh);
  outcome.training = train(elastic, network, mesh, options);
  if (!options.no_evaluation) {
    outcome.held_out = evaluate(network, mesh, options.evaluation_meshes);
    if (!options.png.empty()) {
      const SlopeMaps maps = predict_maps(network, mesh);
      if (manager.rank() == 0) write_picture(maps, outcome, options);
    }
  }
  finish(elastic, outcome, options, network);
}

void run(const Options& options) {
  const IcosahedralMesh sphere = icosahedral_mesh(options.level);
  const SmoothGeoid geoid(geoid::read_gtx(options.data),
                          options.smoothing * mean_edge_radians(sphere) / kDegree);
  jobs::join_world();
  jobs::run_elastic(
      [&](ElasticContext& elastic) { run_in_world(elastic, sphere, geoid, options); });
}

}  // namespace
}  // namespace meshrun::mesh_gnn

int main(int argc, char** argv) {
  meshrun::jobs::run_job("mesh_gnn", [&] {
    const auto options = meshrun::mesh_gnn::parse_options(argc, argv);
    if (options) meshrun::mesh_gnn::run(*options);
  });
}
