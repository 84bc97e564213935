#include "jobs/mesh_gnn/evaluation.h"

#include <ATen/ATen.h>

#include <cmath>

#include "jobs/runtime/all_reduce.h"
#include "jobs/runtime/job.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::mesh_gnn {
namespace {

using at::Tensor;

// Apart from those of training, which count up from a hash of the seed.
Rotation evaluation_orientation(int64_t mesh) {
  return random_rotation(jobs::mix(~uint64_t{0}) + static_cast<uint64_t>(mesh));
}

// The node nearest to `point`: downhill along edges, which leads there on a mesh of nearly equal
// triangles.
class NearestNode {
 public:
  NearestNode(const IcosahedralMesh& mesh, const Rotation& orientation)
      : mesh_(mesh), begins_(static_cast<size_t>(mesh.num_nodes()) + 1, 0) {
    for (const Vector& p : mesh.positions) positions_.push_back(rotated(orientation, p));
    for (const int64_t dst : mesh.dst) ++begins_[static_cast<size_t>(dst) + 1];
    for (size_t n = 1; n < begins_.size(); ++n) begins_[n] += begins_[n - 1];
  }

  size_t find(const Vector& point) {
    for (bool moves = true; moves;) {
      moves = false;
      for (size_t e = begins_[at_]; e < begins_[at_ + 1]; ++e) {
        const auto neighbour = static_cast<size_t>(mesh_.src[e]);
        if (dot(positions_[neighbour], point) <= dot(positions_[at_], point)) continue;
        at_ = neighbour;
        moves = true;
        break;
      }
    }
    return at_;
  }

 private:
  const IcosahedralMesh& mesh_;
  std::vector<Vector> positions_;
  std::vector<size_t> begins_;  // of each node's edges, which are sorted by destination
  size_t at_ = 0;
};

}  // namespace

Errors evaluate(GraphNetwork& network, const GeoidMesh& mesh, int64_t num_meshes) {
  const at::NoGradGuard no_grad;
  Tensor sums = at::zeros({4}, at::kDouble);
  for (int64_t m = 0; m < num_meshes; ++m) {
    const MeshSample sample = mesh.sample(evaluation_orientation(m));
    const Tensor predicted = network(sample.node_features, sample.edge_features, mesh.graph());
    const Tensor chosen = sample.held_out.to(at::kDouble);
    const auto squares = [&](const Tensor& values) {
      return (values.to(at::kDouble).square().mean(1) * chosen).sum();
    };
    sums += at::stack({squares(predicted - sample.targets),
                       squares(mesh.slope_of_planes(sample) - sample.targets),
                       squares(sample.targets), chosen.sum()})
                .cpu();
  }
  sums = jobs::all_reduced(*DistributedManager::get().group(), mesh.graph().device(), sums);
  const double count = sums[3].item<double>();
  if (count == 0) throw jobs::UsageError("--held-out keeps no node for the evaluation");
  const auto root = [&](int64_t i) {
    return mesh.geoid().slope_scale() * std::sqrt(sums[i].item<double>() / count);
  };
  return {root(0), root(1), root(2), static_cast<int64_t>(count)};
}

SlopeMaps predict_maps(GraphNetwork& network, const GeoidMesh& mesh) {
  const at::NoGradGuard no_grad;
  const Rotation orientation = evaluation_orientation(0);
  const MeshSample sample = mesh.sample(orientation);
  const Tensor both = at::cat(
      {sample.targets, network(sample.node_features, sample.edge_features, mesh.graph())}, 1);
  const Tensor all =
      mesh.graph().get_global_dst_node_features(both * mesh.geoid().slope_scale(), false, 0).cpu();
  SlopeMaps maps;
  if (DistributedManager::get().rank() != 0) return maps;
  maps.rows = 181;
  maps.columns = 361;
  maps.truth.resize(2);
  maps.predicted.resize(2);
  const auto values = all.accessor<float, 2>();
  NearestNode nearest(mesh.mesh(), orientation);
  for (int row = 0; row < maps.rows; ++row) {
    for (int column = 0; column < maps.columns; ++column) {
      const auto node = static_cast<int64_t>(nearest.find(point_at(90 - row, column - 180)));
      for (size_t c = 0; c < 2; ++c) {
        maps.truth[c].push_back(values[node][static_cast<int64_t>(c)]);
        maps.predicted[c].push_back(values[node][static_cast<int64_t>(c) + 2]);
      }
    }
  }
  return maps;
}

}  // namespace meshrun::mesh_gnn
