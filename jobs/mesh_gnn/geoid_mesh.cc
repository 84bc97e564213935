#include "jobs/mesh_gnn/geoid_mesh.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "jobs/mesh_gnn/regions.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/graph/partition_graph.h"

namespace meshrun::mesh_gnn {
namespace {

using at::Tensor;

// Slices of equal width between meridians.
CoordinateBoxes slices(int world) {
  CoordinateBoxes boxes;
  for (int r = 0; r < world; ++r) {
    boxes.min.push_back({r == 0 ? std::nullopt : std::optional(-180 + 360.0 * r / world)});
    boxes.max.push_back({});
    boxes.max.back().resize(1);
  }
  return boxes;
}

GraphPartition partition_of(const IcosahedralMesh& mesh, const std::string& kind) {
  const GraphEdges edges{.src = at::tensor(mesh.src, at::kLong),
                         .dst = at::tensor(mesh.dst, at::kLong),
                         .num_src_nodes = mesh.num_nodes(),
                         .held = Held::kWhole};
  if (kind == "nodewise") return partition_graph_nodewise(edges);
  if (kind == "metis") {
    const bool is_root = DistributedManager::get().rank() == 0;
    GraphEdges on_rank_0 = is_root ? edges : GraphEdges{};
    on_rank_0.held = Held::kPart;
    return partition_graph_by_metis(on_rank_0);
  }
  std::vector<double> longitudes;
  for (const auto& p : mesh.positions) longitudes.push_back(std::atan2(p[1], p[0]) / kDegree);
  return partition_graph_by_coordinate_bbox(edges, at::tensor(longitudes, at::kDouble).unsqueeze(1),
                                            {}, slices(DistributedManager::get().world_size()));
}

}  // namespace

double mean_edge_radians(const IcosahedralMesh& mesh) {
  double total = 0;
  for (size_t e = 0; e < mesh.src.size(); ++e) {
    const double cosine = dot(mesh.positions[static_cast<size_t>(mesh.src[e])],
                              mesh.positions[static_cast<size_t>(mesh.dst[e])]);
    total += std::acos(std::clamp(cosine, -1.0, 1.0));
  }
  return total / static_cast<double>(mesh.src.size());
}

GeoidMesh::GeoidMesh(IcosahedralMesh mesh, const SmoothGeoid& geoid, const std::string& partition,
                     double held_out, c10::Device device)
    : mesh_(std::move(mesh)),
      geoid_(geoid),
      held_out_(held_out),
      edge_radians_(mean_edge_radians(mesh_)),
      graph_(partition_of(mesh_, partition), {}, device) {}

MeshSample GeoidMesh::sample(const Rotation& orientation) const {
  const GraphPartition& part = graph_.partition();
  const std::vector<int64_t>& own = part.map_partitioned_dst_ids_to_global;
  const auto count = static_cast<int64_t>(own.size());
  // Position, east and north of each own node, and its height.
  const Tensor frames = at::empty({count, 10}, at::kDouble);
  const Tensor targets = at::empty({count, 2}, at::kDouble);
  const Tensor held_out = at::empty({count}, at::kBool);
  auto* frame = frames.mutable_data_ptr<double>();
  auto* target = targets.mutable_data_ptr<double>();
  auto* is_out = held_out.mutable_data_ptr<bool>();
  for (const int64_t node : own) {
    const Vector point = rotated(orientation, mesh_.positions[static_cast<size_t>(node)]);
    const Frame its = frame_at(point);
    for (const Vector& vector : {point, its.east, its.north}) {
      frame = std::copy(vector.begin(), vector.end(), frame);
    }
    *frame++ = geoid_.height_m(point);
    const Slope slope = geoid_.slope(point);
    *target++ = slope.east / geoid_.slope_scale();
    *target++ = slope.north / geoid_.slope_scale();
    *is_out++ = is_held_out(point, held_out_);
  }
  const c10::Device device = graph_.device();
  const Tensor at_nodes = frames.to(device);
  // Positions and heights of the edges' sources, others' among them.
  const Tensor known = at::cat({at_nodes.slice(1, 0, 3), at_nodes.slice(1, 9, 10)}, 1);
  const Tensor sources =
      graph_.sources().gather(graph_.get_src_node_features_in_local_graph(known));
  const Tensor ends = graph_.destinations().gather(at_nodes);
  const Tensor way = sources.slice(1, 0, 3) - ends.slice(1, 0, 3);
  const Tensor east = (way * ends.slice(1, 3, 6)).sum(1);
  const Tensor north = (way * ends.slice(1, 6, 9)).sum(1);
  const Tensor rise = sources.select(1, 3) - ends.select(1, 9);
  const double typical_rise = geoid_.slope_scale() * kArcSecond * edge_radians_ * kEarthRadiusM;
  MeshSample sample;
  sample.node_features =
      ((at_nodes.slice(1, 9, 10) - geoid_.mean_m()) / geoid_.height_scale_m()).to(at::kFloat);
  sample.edge_features = at::stack({east / edge_radians_, north / edge_radians_,
                                    way.norm(2, 1) / edge_radians_, rise / typical_rise},
                                   1)
                             .to(at::kFloat);
  sample.targets = targets.to(device, at::kFloat);
  sample.held_out = held_out.to(device);
  return sample;
}

Tensor GeoidMesh::slope_of_planes(const MeshSample& sample) const {
  const Tensor features = sample.edge_features.to(at::kDouble);
  const Tensor x = features.select(1, 0);
  const Tensor y = features.select(1, 1);
  const Tensor rise = features.select(1, 3);
  const Tensor sums =
      graph_.destinations().sum(at::stack({x * x, x * y, y * y, x * rise, y * rise}, 1));
  const auto part = [&](int64_t i) { return sums.select(1, i); };
  const Tensor determinant = part(0) * part(2) - part(1) * part(1);
  return at::stack({part(2) * part(3) - part(1) * part(4), part(0) * part(4) - part(1) * part(3)},
                   1)
      .div(determinant.unsqueeze(1))
      .to(at::kFloat);
}

}  // namespace meshrun::mesh_gnn
