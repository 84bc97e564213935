// Learns the Earth's geoid from real data on all ranks that it is started with. See geoid --help.

#include <ATen/Context.h>

#include <string>

#include "jobs/geoid/evaluation.h"
#include "jobs/geoid/gtx.h"
#include "jobs/geoid/options.h"
#include "jobs/geoid/report.h"
#include "jobs/geoid/sampler.h"
#include "jobs/geoid/training.h"
#include "jobs/runtime/elastic.h"
#include "jobs/runtime/job.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::geoid {
namespace {

// The picture's maps are at most this wide, in pixels.
constexpr int64_t kMapColumns = 720;

PointSplit split_field(const Field& field, double held_out) {
  PointSplit split = split_points(field.grid().size(), held_out);
  if (split.held_out.empty()) {
    throw jobs::UsageError("--held-out " + std::to_string(held_out) + " keeps none of the " +
                           std::to_string(field.grid().size()) + " points for the evaluation");
  }
  return split;
}

void run_in_world(ElasticContext& elastic, const Field& field, const PointSplit& points,
                  const Options& options) {
  DistributedManager& manager = DistributedManager::get();
  const ProcessGroupPtr group = manager.group();

  at::manual_seed(options.seed);
  GeoidNetwork network(options.features, options.feature_scale, options.hidden);
  network->to(manager.device());

  Outcome outcome;
  outcome.training = train(elastic, network, field, points.training, options);
  outcome.held_out_points = static_cast<int64_t>(points.held_out.size());
  outcome.training_points = static_cast<int64_t>(points.training.size());
  outcome.field_standard_deviation_m = field.standard_deviation_m();
  if (!options.no_evaluation) {
    outcome.held_out = evaluate(network, field, points.held_out, manager.device(), *group);
    if (!options.png.empty()) {
      const Prediction prediction =
          predict_map(network, field, kMapColumns, manager.device(), *group);
      if (manager.rank() == 0) write_picture(prediction, outcome, options);
    }
  }
  finish(elastic, outcome, options, network);
}

void run(const Options& options) {
  const Field field(read_gtx(options.data));
  const PointSplit points = split_field(field, options.held_out);
  jobs::join_world();
  jobs::run_elastic(
      [&](ElasticContext& elastic) { run_in_world(elastic, field, points, options); });
}

}  // namespace
}  // namespace meshrun::geoid

int main(int argc, char** argv) {
  meshrun::jobs::run_job("geoid", [&] {
    const auto options = meshrun::geoid::parse_options(argc, argv);
    if (options) meshrun::geoid::run(*options);
  });
}
