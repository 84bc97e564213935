#include "jobs/darcy/training.h"

#include <map>
#include <string>
#include <vector>

#include "jobs/darcy/evaluation.h"
#include "jobs/runtime/operator_training.h"
#include "parallel/nn/distributed_data_parallel.h"

namespace meshrun::darcy {
namespace {

using at::Tensor;

std::map<std::string, std::string> identity_of(const Options& options, const Samples& samples) {
  return {{"data", samples.origin},
          {"--train-samples", std::to_string(options.train_samples)},
          {"--padding", std::to_string(options.padding)}};
}

// On this rank's device.
struct Batch {
  Tensor permeability;
  Tensor pressure;
  Tensor norms;
};

Batch take(const Samples& samples, const std::vector<int64_t>& chosen) {
  const Tensor indices = at::tensor(chosen, at::kLong);
  const auto pick = [&](const Tensor& all) {
    return all.index_select(0, indices).to(DistributedManager::get().device());
  };
  return {pick(samples.permeability), pick(samples.pressure), pick(samples.pressure_norm)};
}

}  // namespace

jobs::TrainingResult train(ElasticContext& elastic, DarcyNetwork& network, const Samples& samples,
                           const jobs::RankMesh& mesh, const Options& options) {
  jobs::OperatorTraining training(elastic, options, identity_of(options, samples), *network, mesh);
  DistributedDataParallel model(network, training.data_parallel_options());
  return training.run(options.train_samples, [&](const std::vector<int64_t>& chosen) {
    const Batch batch = take(samples, chosen);
    return relative_errors(model(batch.permeability), batch.pressure, batch.norms, mesh);
  });
}

}  // namespace meshrun::darcy
