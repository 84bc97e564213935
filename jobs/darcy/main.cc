// Learns the pressure of Darcy flow on all ranks that it is started with. See darcy --help.

#include <ATen/Context.h>

#include <algorithm>
#include <string>

#include "jobs/darcy/data.h"
#include "jobs/darcy/evaluation.h"
#include "jobs/darcy/options.h"
#include "jobs/darcy/picture.h"
#include "jobs/darcy/report.h"
#include "jobs/darcy/training.h"
#include "jobs/runtime/elastic.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/rank_mesh.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::darcy {
namespace {

// Samples in the picture.
constexpr int64_t kShown = 3;

void run_in_world(ElasticContext& elastic, const Options& options) {
  const DistributedManager& manager = DistributedManager::get();
  const c10::Device device = manager.device();
  const jobs::RankMesh mesh = jobs::join_mesh(options.spatial);
  const Samples samples = load_samples(options, mesh);

  at::manual_seed(options.seed);
  DarcyNetwork network(options, samples, mesh, device);

  Outcome outcome;
  outcome.training = train(elastic, network, samples, mesh, options);
  outcome.shape = samples.shape;
  outcome.data_origin = samples.origin;
  outcome.data_seconds = samples.seconds;
  outcome.data_solved = samples.solved;
  if (!options.no_evaluation) {
    const Predict predict = [&](const at::Tensor& permeability) { return network(permeability); };
    outcome.test =
        evaluate(predict, samples, options.train_samples, options.test_samples, mesh, device);
    if (!options.png.empty()) {
      const Shown shown = show(predict, samples, options.train_samples,
                               std::min(kShown, options.test_samples), mesh, device);
      if (manager.rank() == 0) {
        write_picture(shown, *outcome.test, outcome.training.steps, options.png);
      }
    }
  }
  finish(elastic, outcome, options, network, mesh);
}

void run(const Options& options) {
  jobs::join_world();
  jobs::run_elastic([&](ElasticContext& elastic) { run_in_world(elastic, options); });
}

}  // namespace
}  // namespace meshrun::darcy

int main(int argc, char** argv) {
  meshrun::jobs::run_job("darcy", [&] {
    const auto options = meshrun::darcy::parse_options(argc, argv);
    if (options) meshrun::darcy::run(*options);
  });
}
