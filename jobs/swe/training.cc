#include "jobs/swe/training.h"

#include <map>
#include <string>
#include <vector>

#include "jobs/runtime/operator_training.h"
#include "parallel/collectives/mappings.h"
#include "parallel/nn/distributed_data_parallel.h"

namespace meshrun::swe {
namespace {

using at::Tensor;

std::map<std::string, std::string> identity_of(const Options& options,
                                               const Trajectories& trajectories) {
  return {{"data", trajectories.origin},
          {"--train-trajectories", std::to_string(options.train_trajectories)}};
}

// On this rank's device: states and those one interval later.
struct Batch {
  Tensor before;
  Tensor after;
};

Batch take(const Trajectories& trajectories, const std::vector<int64_t>& chosen) {
  const int64_t intervals = trajectories.states.size(1) - 1;
  std::vector<Tensor> before;
  std::vector<Tensor> after;
  for (const int64_t sample : chosen) {
    const Tensor trajectory = trajectories.states[sample / intervals];
    before.push_back(trajectory[sample % intervals]);
    after.push_back(trajectory[sample % intervals + 1]);
  }
  const c10::Device device = DistributedManager::get().device();
  return {at::stack(before).to(device), at::stack(after).to(device)};
}

}  // namespace

Tensor relative_errors(const Tensor& predicted, const Tensor& truth, const Tensor& reference,
                       const Tensor& scales, const jobs::RankMesh& mesh) {
  const auto squares = [&](const Tensor& field) {
    return (field / scales).square().sum({1, 2, 3});
  };
  const Tensor sums = reduce_from_parallel_region(
      at::stack({squares(predicted - truth), squares(reference)}), mesh.spatial);
  // The root has no slope at zero, and nothing is relative to zero.
  constexpr double kTiny = 1e-30;
  const Tensor roots = sums.clamp_min(kTiny).sqrt();
  return roots[0] / roots[1];
}

jobs::TrainingResult train(ElasticContext& elastic, SweNetwork& network,
                           const Trajectories& trajectories, const jobs::RankMesh& mesh,
                           const Options& options) {
  jobs::OperatorTraining training(elastic, options, identity_of(options, trajectories), *network,
                                  mesh);
  DistributedDataParallel model(network, training.data_parallel_options());
  const int64_t samples = options.train_trajectories * options.intervals;
  return training.run(samples, [&](const std::vector<int64_t>& chosen) {
    const Batch batch = take(trajectories, chosen);
    return relative_errors(model(batch.before), batch.after, batch.after - batch.before,
                           network->change_scales(), mesh);
  });
}

}  // namespace meshrun::swe
