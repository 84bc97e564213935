#include "jobs/geoid/training.h"

#include <torch/optim/adam.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "jobs/geoid/live_map.h"
#include "jobs/geoid/sampler.h"
#include "parallel/base/split.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/distributed_data_parallel.h"

namespace meshrun::geoid {
namespace {

using at::Tensor;

// This rank's share of a step's batch, and the weight of the whole batch, which every rank can
// tell.
struct Share {
  std::vector<int64_t> points;
  double batch_weight = 0;
};

Share share_of_batch(const Field& field, std::span<const int64_t> points, const Options& options,
                     int64_t step, int rank, int world_size) {
  Share share;
  std::vector<int64_t> batch =
      global_batch(options.seed, step, options.batch, static_cast<int64_t>(points.size()));
  for (int64_t& position : batch) {
    position = points[position];
    share.batch_weight += field.weight(position);
  }
  const SplitRange range = split_range(options.batch, world_size, rank);
  share.points.assign(batch.begin() + range.begin, batch.begin() + range.end);
  return share;
}

// The mean over ranks of this loss is the weighted mean square over the global batch, and the mean
// is what DistributedDataParallel makes of its gradients: that is right for shares of any size.
Tensor local_loss(const Tensor& predicted, const Field::Samples& samples, c10::Device device,
                  const Share& share, int world_size) {
  const Tensor error = predicted - samples.targets.to(device);
  const Tensor sum = (samples.weights.to(device) * error.square()).sum();
  // A batch of poles alone weighs nothing.
  return sum * (share.batch_weight > 0 ? world_size / share.batch_weight : 0);
}

std::map<std::string, std::string> identity_of(const Options& options) {
  return {{"--batch", std::to_string(options.batch)},
          {"--hidden", std::to_string(options.hidden)},
          {"--features", std::to_string(options.features)},
          {"--feature-scale", std::to_string(options.feature_scale)},
          {"--held-out", std::to_string(options.held_out)}};
}

}  // namespace

jobs::TrainingResult train(ElasticContext& elastic, GeoidNetwork& network, const Field& field,
                           std::span<const int64_t> points, const Options& options) {
  const DistributedManager& manager = DistributedManager::get();
  torch::optim::Adam optimizer(network->parameters(), options.learning_rate);
  jobs::Training training(elastic, options, identity_of(options), *network, optimizer,
                          "geoid.safetensors");
  DistributedDataParallel model(network, {.device_ids = {manager.local_rank()},
                                          .output_device = manager.device(),
                                          .broadcast_buffers = false});
  LiveMap live_map(network, field);
  const auto rmse_of = [&field](double mean) {
    return field.standard_deviation_m() * std::sqrt(mean);
  };
  int64_t steps = 0;
  const jobs::TrainingResult result = training.run(
      [&](int64_t step) {
        steps = step + 1;
        const Share share =
            share_of_batch(field, points, options, step, manager.rank(), manager.world_size());
        const Field::Samples samples = field.samples(share.points);
        return local_loss(model(samples.positions), samples, manager.device(), share,
                          manager.world_size());
      },
      [&](double mean) -> jobs::ShownLoss {
        live_map.update(steps, rmse_of(mean));
        return {mean, {{"rmse_m", rmse_of(mean)}}};
      });
  if (result.loss) live_map.finish(result.steps, rmse_of(*result.loss));
  return result;
}

}  // namespace meshrun::geoid
