// Learns to step rotating shallow water on all ranks that it is started with. See swe --help.

#include <ATen/Context.h>

#include <string>

#include "jobs/runtime/elastic.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/rank_mesh.h"
#include "jobs/swe/data.h"
#include "jobs/swe/evaluation.h"
#include "jobs/swe/options.h"
#include "jobs/swe/report.h"
#include "jobs/swe/training.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::swe {
namespace {

void run_in_world(ElasticContext& elastic, const Options& options) {
  const DistributedManager& manager = DistributedManager::get();
  const c10::Device device = manager.device();
  const jobs::RankMesh mesh = jobs::join_mesh(options.spatial);
  const Trajectories trajectories = make_trajectories(options, mesh, device);

  at::manual_seed(options.seed);
  SweNetwork network(options, trajectories, mesh, device);

  Outcome outcome;
  outcome.training = train(elastic, network, trajectories, mesh, options);
  outcome.data_origin = trajectories.origin;
  outcome.data_seconds = trajectories.seconds;
  if (!options.no_evaluation) {
    outcome.test = evaluate(network, trajectories, options.train_trajectories,
                            options.test_trajectories, mesh, device);
    if (!options.png.empty()) {
      const Shown shown = show(network, trajectories, options.train_trajectories, mesh, device);
      if (manager.rank() == 0) write_picture(shown, outcome, options);
    }
  }
  finish(elastic, outcome, options, network, mesh);
}

void run(const Options& options) {
  jobs::join_world();
  jobs::run_elastic([&](ElasticContext& elastic) { run_in_world(elastic, options); });
}

}  // namespace
}  // namespace meshrun::swe

int main(int argc, char** argv) {
  meshrun::jobs::run_job("swe", [&] {
    const auto options = meshrun::swe::parse_options(argc, argv);
    if (options) meshrun::swe::run(*options);
  });
}
