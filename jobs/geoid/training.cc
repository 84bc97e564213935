#include "jobs/geoid/training.h"

#include <torch/optim/adam.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <optional>
#include <vector>

#include "jobs/geoid/sampler.h"
#include "jobs/runtime/agreement.h"
#include "jobs/runtime/one_cycle.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/stop.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/collectives/split.h"
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

// --steps is among them: the learning rate of a step depends on how many there will be.
std::map<std::string, std::string> identity_of(const Options& options) {
  return {{"job", "geoid"},
          {"--batch", std::to_string(options.batch)},
          {"--seed", std::to_string(options.seed)},
          {"--steps", std::to_string(options.steps)},
          {"--lr", std::to_string(options.learning_rate)},
          {"--hidden", std::to_string(options.hidden)},
          {"--features", std::to_string(options.features)},
          {"--feature-scale", std::to_string(options.feature_scale)},
          {"--held-out", std::to_string(options.held_out)}};
}

std::optional<CheckpointDirectory> checkpoints_of(const Options& options) {
  if (options.checkpoint_dir.empty()) return std::nullopt;
  return CheckpointDirectory(options.checkpoint_dir, {.identity = identity_of(options),
                                                      .keep = options.keep_checkpoints,
                                                      .former_file = "geoid.safetensors"});
}

// The batch of a step is a function of these two.
TrainingProgress progress_of(const Options& options, int64_t steps) {
  return {steps, {{"seed", std::to_string(options.seed)}, {"next_step", std::to_string(steps)}}};
}

}  // namespace

TrainingResult train(GeoidNetwork& network, const Field& field, std::span<const int64_t> points,
                     const Options& options) {
  DistributedManager& manager = DistributedManager::get();
  const ProcessGroupPtr group = manager.group();
  std::optional<CheckpointDirectory> checkpoints = checkpoints_of(options);

  torch::optim::Adam optimizer(network->parameters(), options.learning_rate);
  TrainingResult result;
  if (options.resume) {
    const auto found = checkpoints->load(*network, optimizer);
    if (found) result.first_step = found->step;
  }
  DistributedDataParallel model(network, {.device_ids = {manager.local_rank()},
                                          .output_device = manager.device(),
                                          .broadcast_buffers = false});
  const auto save = [&] {
    if (checkpoints) checkpoints->save(*network, optimizer, progress_of(options, result.steps));
  };

  jobs::Progress progress("geoid", options.steps, options.log_every);
  const auto start = std::chrono::steady_clock::now();
  result.steps = result.first_step;
  while (result.steps < options.steps) {
    const Share share =
        share_of_batch(field, points, options, result.steps, manager.rank(), manager.world_size());
    const Field::Samples samples = field.samples(share.points);
    optimizer.param_groups()[0].options().set_lr(
        jobs::one_cycle(options.learning_rate, result.steps, options.steps));
    optimizer.zero_grad();
    const Tensor loss = local_loss(model(samples.positions), samples, manager.device(), share,
                                   manager.world_size());
    loss.backward();
    optimizer.step();
    ++result.steps;

    const bool last = result.steps == options.steps;
    if (last || result.steps % options.checkpoint_every == 0) save();
    if (!last && result.steps % jobs::kAgreeEvery != 0) continue;
    const jobs::Agreement agreement = jobs::agree(*group, loss);
    progress.report(result.steps, agreement.loss,
                    {{"rmse_m", field.standard_deviation_m() * std::sqrt(agreement.loss)}});
    if (agreement.stop && !last) {
      jobs::request_stop(SIGTERM);
      save();
      throw jobs::Stopped();
    }
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  result.seconds = elapsed.count();
  const auto trained = static_cast<double>((result.steps - result.first_step) * options.batch);
  result.samples_per_second = result.seconds > 0 ? trained / result.seconds : 0;
  return result;
}

}  // namespace meshrun::geoid
