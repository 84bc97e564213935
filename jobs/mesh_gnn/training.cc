#include "jobs/mesh_gnn/training.h"

#include <ATen/ATen.h>
#include <torch/optim/adam.h>

#include <cmath>
#include <map>
#include <string>

#include "jobs/runtime/random.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::mesh_gnn {
namespace {

using at::Tensor;

// The partition is absent: any continues what any other has begun.
std::map<std::string, std::string> identity_of(const Options& options) {
  return {{"--level", std::to_string(options.level)},
          {"--smoothing", std::to_string(options.smoothing)},
          {"--hidden", std::to_string(options.hidden)},
          {"--blocks", std::to_string(options.blocks)},
          {"--held-out", std::to_string(options.held_out)}};
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

jobs::TrainingResult train(ElasticContext& elastic, GraphNetwork& network, const GeoidMesh& mesh,
                           const Options& options) {
  torch::optim::Adam optimizer(network->parameters(), options.learning_rate);
  jobs::Training training(elastic, options, identity_of(options), *network, optimizer);
  // The sum over the ranks of their losses is about the mean over what is trained on.
  const double weight =
      1 / (static_cast<double>(mesh.num_nodes() * GeoidMesh::kTargets) * (1 - options.held_out));
  return training.run(
      [&](int64_t step) {
        const MeshSample sample = mesh.sample(orientation_of(options, step));
        const Tensor error =
            network(sample.node_features, sample.edge_features, mesh.graph()) - sample.targets;
        const Tensor trained = sample.held_out.logical_not().to(at::kFloat).unsqueeze(1);
        return weight * (error.square() * trained).sum();
      },
      [&](double mean) -> jobs::ShownLoss {
        const double sum = mean * DistributedManager::get().world_size();
        return {sum, {{"rmse_arcsec", mesh.geoid().slope_scale() * std::sqrt(sum)}}};
      });
}

}  // namespace meshrun::mesh_gnn
