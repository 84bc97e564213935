#include "jobs/mesh_gnn/training.h"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <map>
#include <optional>
#include <string>

#include "jobs/runtime/agreement.h"
#include "jobs/runtime/one_cycle.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/stop.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::mesh_gnn {
namespace {

using at::Tensor;

// --steps is among them: the learning rate of a step depends on how many there will be. The
// partition is not: any continues what any other has begun.
std::map<std::string, std::string> identity_of(const Options& options) {
  return {{"job", "mesh_gnn"},
          {"--level", std::to_string(options.level)},
          {"--smoothing", std::to_string(options.smoothing)},
          {"--steps", std::to_string(options.steps)},
          {"--seed", std::to_string(options.seed)},
          {"--lr", std::to_string(options.learning_rate)},
          {"--hidden", std::to_string(options.hidden)},
          {"--blocks", std::to_string(options.blocks)},
          {"--held-out", std::to_string(options.held_out)}};
}

std::optional<CheckpointDirectory> checkpoints_of(const Options& options) {
  if (options.checkpoint_dir.empty()) return std::nullopt;
  return CheckpointDirectory(options.checkpoint_dir,
                             {.identity = identity_of(options), .keep = options.keep_checkpoints});
}

// The orientation of a step is a function of these two.
TrainingProgress progress_of(const Options& options, int64_t steps) {
  return {steps, {{"seed", std::to_string(options.seed)}, {"next_step", std::to_string(steps)}}};
}

Rotation orientation_of(const Options& options, int64_t step) {
  return random_rotation(jobs::mix(options.seed) + static_cast<uint64_t>(step));
}

}  // namespace

GraphNetwork make_network(const Options& options) {
  return GraphNetwork(
      GraphNetworkOptions(GeoidMesh::kNodeFeatures, GeoidMesh::kEdgeFeatures, GeoidMesh::kTargets)
          .processor_size(options.blocks)
          .mlp_activation_fn("silu")
          .num_layers_node_encoder(1)
          .num_layers_edge_encoder(1)
          .num_layers_node_processor(1)
          .num_layers_edge_processor(1)
          .num_layers_node_decoder(1)
          .hidden_dim_processor(options.hidden)
          .hidden_dim_node_encoder(options.hidden)
          .hidden_dim_edge_encoder(options.hidden)
          .hidden_dim_node_decoder(options.hidden));
}

TrainingResult train(GraphNetwork& network, const GeoidMesh& mesh, const Options& options) {
  DistributedManager& manager = DistributedManager::get();
  const ProcessGroupPtr group = manager.group();
  std::optional<CheckpointDirectory> checkpoints = checkpoints_of(options);
  torch::optim::Adam optimizer(network->parameters(), options.learning_rate);
  TrainingResult result;
  if (options.resume) {
    const auto found = checkpoints->load(*network, optimizer);
    if (found) result.first_step = found->step;
  }
  const auto save = [&] {
    if (checkpoints) checkpoints->save(*network, optimizer, progress_of(options, result.steps));
  };
  // The sum over the ranks of their losses is about the mean over what is trained on.
  const double weight =
      1 / (static_cast<double>(mesh.num_nodes() * GeoidMesh::kTargets) * (1 - options.held_out));

  jobs::Progress progress("mesh_gnn", options.steps, options.log_every);
  const auto start = std::chrono::steady_clock::now();
  result.steps = result.first_step;
  while (result.steps < options.steps) {
    const MeshSample sample = mesh.sample(orientation_of(options, result.steps));
    optimizer.param_groups()[0].options().set_lr(
        jobs::one_cycle(options.learning_rate, result.steps, options.steps));
    optimizer.zero_grad();
    const Tensor error =
        network(sample.node_features, sample.edge_features, mesh.graph()) - sample.targets;
    const Tensor trained = sample.held_out.logical_not().to(at::kFloat).unsqueeze(1);
    const Tensor loss = weight * (error.square() * trained).sum();
    loss.backward();
    optimizer.step();
    ++result.steps;

    const bool last = result.steps == options.steps;
    if (last || result.steps % options.checkpoint_every == 0) save();
    if (!last && result.steps % jobs::kAgreeEvery != 0) continue;
    const jobs::Agreement agreement = jobs::agree(*group, loss);
    const double sum = agreement.loss * manager.world_size();
    progress.report(result.steps, sum,
                    {{"rmse_arcsec", mesh.geoid().slope_scale() * std::sqrt(sum)}});
    if (agreement.stop && !last) {
      jobs::request_stop(SIGTERM);
      save();
      throw jobs::Stopped();
    }
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  result.seconds = elapsed.count();
  if (result.seconds > 0) {
    result.steps_per_second =
        static_cast<double>(result.steps - result.first_step) / result.seconds;
  }
  return result;
}

}  // namespace meshrun::mesh_gnn
