#include "jobs/darcy/training.h"

#include <torch/optim/adamw.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "jobs/runtime/agreement.h"
#include "jobs/runtime/epoch_sampler.h"
#include "jobs/runtime/job.h"
#include "jobs/runtime/one_cycle.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/stop.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/collectives/mappings.h"
#include "parallel/nn/distributed_data_parallel.h"

namespace meshrun::darcy {
namespace {

using at::Tensor;

// --steps is among them: the learning rate of a step depends on how many there will be. The mesh is
// not: any continues what any other has begun.
std::map<std::string, std::string> identity_of(const Options& options, const Samples& samples) {
  return {{"job", "darcy"},
          {"data", samples.origin},
          {"--train-samples", std::to_string(options.train_samples)},
          {"--steps", std::to_string(options.steps)},
          {"--batch", std::to_string(options.batch)},
          {"--seed", std::to_string(options.seed)},
          {"--lr", std::to_string(options.learning_rate)},
          {"--weight-decay", std::to_string(options.weight_decay)},
          {"--width", std::to_string(options.width)},
          {"--modes", std::to_string(options.modes)},
          {"--layers", std::to_string(options.layers)},
          {"--padding", std::to_string(options.padding)}};
}

std::optional<CheckpointDirectory> checkpoints_of(const Options& options, const Samples& samples) {
  if (options.checkpoint_dir.empty()) return std::nullopt;
  return CheckpointDirectory(options.checkpoint_dir, {.identity = identity_of(options, samples),
                                                      .keep = options.keep_checkpoints});
}

// This rank's samples of a batch, on its device.
struct Batch {
  Tensor permeability;
  Tensor pressure;
  Tensor norms;
};

Batch take(const Samples& samples, const std::vector<int64_t>& batch, const jobs::RankMesh& mesh,
           c10::Device device) {
  const SplitRange share = mesh.share(static_cast<int64_t>(batch.size()));
  const Tensor chosen = at::tensor(
      std::vector<int64_t>(batch.begin() + share.begin, batch.begin() + share.end), at::kLong);
  const auto pick = [&](const Tensor& all) { return all.index_select(0, chosen).to(device); };
  return {pick(samples.permeability), pick(samples.pressure), pick(samples.pressure_norm)};
}

}  // namespace

Tensor relative_errors(const Tensor& predicted, const Tensor& truth, const Tensor& norms,
                       const jobs::RankMesh& mesh) {
  const Tensor squares =
      reduce_from_parallel_region((predicted - truth).square().sum({1, 2}), mesh.spatial);
  // The root has no slope at zero.
  constexpr double kTiny = 1e-30;
  return squares.clamp_min(kTiny).sqrt() / norms;
}

TrainingResult train(DarcyNetwork& network, const Samples& samples, const jobs::RankMesh& mesh,
                     const Options& options) {
  const DistributedManager& manager = DistributedManager::get();
  if (options.batch < mesh.data->getSize()) {
    throw jobs::UsageError("--batch " + std::to_string(options.batch) +
                           " has no sample for some of the mesh's " +
                           std::to_string(mesh.data->getSize()) + " groups along dp");
  }
  torch::optim::AdamW optimizer(
      network->parameters(),
      torch::optim::AdamWOptions(options.learning_rate).weight_decay(options.weight_decay));
  std::optional<CheckpointDirectory> checkpoints = checkpoints_of(options, samples);
  TrainingResult result;
  if (options.resume) {
    const auto found = checkpoints->load(*network, optimizer);
    if (found) result.first_step = found->step;
  }
  DistributedDataParallel model(network, {.device_ids = {manager.local_rank()},
                                          .output_device = manager.device(),
                                          .broadcast_buffers = false,
                                          .process_group = mesh.data});
  const auto save = [&] {
    if (!checkpoints) return;
    checkpoints->save(
        *network, optimizer,
        {result.steps,
         {{"seed", std::to_string(options.seed)}, {"next_step", std::to_string(result.steps)}}});
  };

  jobs::EpochSampler sampler(options.seed, options.train_samples);
  jobs::Progress progress("darcy", options.steps, options.log_every);
  const auto start = std::chrono::steady_clock::now();
  result.steps = result.first_step;
  while (result.steps < options.steps) {
    const Batch batch =
        take(samples, sampler.batch(result.steps, options.batch), mesh, manager.device());
    optimizer.param_groups()[0].options().set_lr(
        jobs::one_cycle(options.learning_rate, result.steps, options.steps));
    optimizer.zero_grad();
    // The mean over the groups along dp of this is the mean over the global batch, and the mean is
    // what DistributedDataParallel makes of its gradients: that is right for shares of any size.
    const double weight =
        static_cast<double>(mesh.data->getSize()) / static_cast<double>(options.batch);
    const Tensor loss =
        weight *
        relative_errors(model(batch.permeability), batch.pressure, batch.norms, mesh).sum();
    loss.backward();
    optimizer.step();
    ++result.steps;

    const bool last = result.steps == options.steps;
    if (last || result.steps % options.checkpoint_every == 0) save();
    if (!last && result.steps % jobs::kAgreeEvery != 0) continue;
    const jobs::Agreement agreement = jobs::agree(*mesh.world, loss);
    result.loss = agreement.loss;
    progress.report(result.steps, agreement.loss, {});
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

}  // namespace meshrun::darcy
