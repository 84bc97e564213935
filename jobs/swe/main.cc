// Learns to step rotating shallow water on all ranks that it is started with. See swe --help.

#include <ATen/Context.h>

#include <map>
#include <string>

#include "jobs/runtime/job.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/rank_mesh.h"
#include "jobs/swe/data.h"
#include "jobs/swe/evaluation.h"
#include "jobs/swe/options.h"
#include "jobs/swe/report.h"
#include "jobs/swe/training.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::swe {
namespace {

void run(const Options& options) {
  jobs::join_world();
  const DistributedManager& manager = DistributedManager::get();
  const c10::Device device = manager.device();
  const jobs::RankMesh mesh = jobs::join_mesh(options.spatial);
  const Trajectories trajectories = make_trajectories(options, mesh, device);

  at::manual_seed(options.seed);
  SweNetwork network(options, trajectories, mesh, device);

  Outcome outcome;
  outcome.training = train(network, trajectories, mesh, options);
  outcome.data_origin = trajectories.origin;
  outcome.data_seconds = trajectories.seconds;
  outcome.world_size = manager.world_size();
  outcome.data_ranks = mesh.data->getSize();
  outcome.spatial_ranks = mesh.spatial->getSize();
  outcome.backend = manager.backend();

  if (!options.dump_parameters.empty()) {
    write_parameters(
        options.dump_parameters + "-rank-" + std::to_string(manager.rank()) + ".safetensors",
        *network);
  }
  std::map<std::string, double> metrics;
  if (!options.no_evaluation) {
    outcome.test = evaluate(network, trajectories, options.train_trajectories,
                            options.test_trajectories, mesh, device);
    metrics["relative_l2_one_step"] = outcome.test->one_step;
    metrics["relative_l2_rollout"] = outcome.test->rollout.back();
    if (!options.png.empty()) {
      const Shown shown = show(network, trajectories, options.train_trajectories, mesh, device);
      if (manager.rank() == 0) write_picture(shown, outcome, options);
    }
  }
  if (!options.report.empty() && manager.rank() == 0) write_report(outcome, options);
  jobs::Progress("swe", options.steps, options.log_every)
      .finish(outcome.training.steps, metrics, summary(outcome, options));
}

}  // namespace
}  // namespace meshrun::swe

int main(int argc, char** argv) {
  meshrun::jobs::run_job("swe", [&] {
    const auto options = meshrun::swe::parse_options(argc, argv);
    if (options) meshrun::swe::run(*options);
  });
}
