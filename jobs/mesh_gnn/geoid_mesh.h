// The mesh as a graph split over ranks, and the geoid on it as features and targets.
//
// Each step sees the mesh in another orientation, so at other points of the Earth. A rank reads the
// geoid at its own nodes; heights of neighbours come through the graph's halo exchange.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "jobs/mesh_gnn/smooth_geoid.h"
#include "parallel/nn/graph/distributed_graph.h"
#include "parallel/nn/graph/icosahedral_mesh.h"

namespace meshrun::mesh_gnn {

// Features and targets for one orientation. All tensors are of this rank's part of the graph.
struct MeshSample {
  at::Tensor node_features;  // [nodes, 1] f32: the height over its standard deviation
  // [edges, 4] f32: the way from the destination to the source, east, north and straight, in mean
  // edges; the difference of heights over that of a typical slope.
  at::Tensor edge_features;
  at::Tensor targets;   // [nodes, 2] f32: the slope, east and north, over slope_scale()
  at::Tensor held_out;  // [nodes] bool
};

class GeoidMesh {
 public:
  static constexpr int64_t kNodeFeatures = 1;
  static constexpr int64_t kEdgeFeatures = 4;
  static constexpr int64_t kTargets = 2;

  // Collective over the world. `partition`: "metis", "nodewise" or "boxes" (of longitude).
  GeoidMesh(IcosahedralMesh mesh, const SmoothGeoid& geoid, const std::string& partition,
            double held_out, c10::Device device);

  const DistributedGraph& graph() const { return graph_; }
  int64_t num_nodes() const { return mesh_.num_nodes(); }
  const IcosahedralMesh& mesh() const { return mesh_; }
  const SmoothGeoid& geoid() const { return geoid_; }
  // Mean angle of an edge, in radians.
  double edge_radians() const { return edge_radians_; }

  // Collective.
  MeshSample sample(const Rotation& orientation) const;
  // The slope of the least-squares plane through the neighbours' heights: [nodes, 2], in the
  // targets' unit. Local.
  at::Tensor slope_of_planes(const MeshSample& sample) const;

 private:
  const IcosahedralMesh mesh_;
  const SmoothGeoid& geoid_;
  const double held_out_;
  const double edge_radians_;
  const DistributedGraph graph_;
};

// Mean angle between the ends of the edges, in radians.
double mean_edge_radians(const IcosahedralMesh& mesh);

}  // namespace meshrun::mesh_gnn
