// Learns the pressure of Darcy flow on all ranks that it is started with. See darcy --help.

#include <ATen/Context.h>

#include <algorithm>
#include <map>
#include <string>

#include "jobs/darcy/data.h"
#include "jobs/darcy/evaluation.h"
#include "jobs/darcy/options.h"
#include "jobs/darcy/report.h"
#include "jobs/darcy/training.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/rank_mesh.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun::darcy {
namespace {

// Samples in the picture.
constexpr int64_t kShown = 3;

int64_t unsharded_parameters(const DarcyNetwork& network) {
  const auto shards = parameter_shards(*network);
  int64_t count = 0;
  for (const auto& item : network->named_parameters()) {
    const auto shard = shards.find(item.key());
    count += shard == shards.end() ? item.value().numel()
                                   : c10::multiply_integers(shard->second.global_shape);
  }
  return count;
}

void run(const Options& options) {
  jobs::join_world();
  const DistributedManager& manager = DistributedManager::get();
  const c10::Device device = manager.device();
  const jobs::RankMesh mesh = jobs::join_mesh(options.spatial);
  const Samples samples = load_samples(options, mesh);

  at::manual_seed(options.seed);
  DarcyNetwork network(options, samples, mesh, device);

  Outcome outcome;
  outcome.training = train(network, samples, mesh, options);
  outcome.shape = samples.shape;
  outcome.data_origin = samples.origin;
  outcome.data_seconds = samples.seconds;
  outcome.data_solved = samples.solved;
  outcome.parameters = unsharded_parameters(network);
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
    outcome.test =
        evaluate(network, samples, options.train_samples, options.test_samples, mesh, device);
    metrics["relative_l2_test"] = outcome.test->relative_l2;
    if (!options.png.empty()) {
      const Shown shown = show(network, samples, options.train_samples,
                               std::min(kShown, options.test_samples), mesh, device);
      if (manager.rank() == 0) write_picture(shown, outcome, options);
    }
  }
  if (!options.report.empty() && manager.rank() == 0) write_report(outcome, options);
  jobs::Progress("darcy", options.steps, options.log_every)
      .finish(outcome.training.steps, metrics, summary(outcome, options));
}

}  // namespace
}  // namespace meshrun::darcy

int main(int argc, char** argv) {
  meshrun::jobs::run_job("darcy", [&] {
    const auto options = meshrun::darcy::parse_options(argc, argv);
    if (options) meshrun::darcy::run(*options);
  });
}
