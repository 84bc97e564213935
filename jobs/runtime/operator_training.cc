#include "jobs/runtime/operator_training.h"

#include <utility>

#include "jobs/runtime/epoch_sampler.h"
#include "jobs/runtime/job.h"

namespace meshrun::jobs {
namespace {

std::map<std::string, std::string> with_flags(std::map<std::string, std::string> identity,
                                              const OperatorOptions& options) {
  identity.merge(identity_of(options));
  return identity;
}

const RankMesh& checked(const RankMesh& mesh, const OperatorOptions& options) {
  const int groups = mesh.data->getSize();
  if (options.batch >= groups) return mesh;
  throw UsageError("--batch " + std::to_string(options.batch) +
                   " has no sample for some of the mesh's " + std::to_string(groups) +
                   " groups along dp");
}

}  // namespace

OperatorTraining::OperatorTraining(ElasticContext& elastic, const OperatorOptions& options,
                                   std::map<std::string, std::string> identity,
                                   torch::nn::Module& network, const RankMesh& mesh)
    : options_(options),
      mesh_(checked(mesh, options)),
      optimizer_(
          network.parameters(),
          torch::optim::AdamWOptions(options.learning_rate).weight_decay(options.weight_decay)),
      training_(elastic, options, with_flags(std::move(identity), options), network, optimizer_) {}

DistributedDataParallelOptions OperatorTraining::data_parallel_options() const {
  const DistributedManager& manager = DistributedManager::get();
  return {.device_ids = {manager.local_rank()},
          .output_device = manager.device(),
          .broadcast_buffers = false,
          .process_group = mesh_.data};
}

TrainingResult OperatorTraining::run(
    int64_t samples,
    const std::function<at::Tensor(const std::vector<int64_t>& chosen)>& errors_of) {
  EpochSampler sampler(options_.seed, samples);
  const SplitRange share = mesh_.share(options_.batch);
  // The mean over the groups along dp of this loss is the mean over the global batch, and the mean
  // is what DistributedDataParallel makes of its gradients: that is right for shares of any size.
  const double weight =
      static_cast<double>(mesh_.data->getSize()) / static_cast<double>(options_.batch);
  return training_.run([&](int64_t step) {
    const std::vector<int64_t> batch = sampler.batch(step, options_.batch);
    return weight * errors_of({batch.begin() + share.begin, batch.begin() + share.end}).sum();
  });
}

}  // namespace meshrun::jobs
