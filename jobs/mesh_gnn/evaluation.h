// How well the network knows slopes where it was not trained, on meshes that it has not seen.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/mesh_gnn/geoid_mesh.h"
#include "parallel/nn/graph/graph_network.h"

namespace meshrun::mesh_gnn {

// All functions here are collective over the world.

// Root mean squares over the held-out nodes of all orientations, in arc seconds.
struct Errors {
  double rmse = 0;
  double rmse_of_planes = 0;  // slope_of_planes()
  double slope = 0;           // the truth itself
  int64_t nodes = 0;
};
// The same on every rank. Raises jobs::UsageError where no node is held out.
Errors evaluate(GraphNetwork& network, const GeoidMesh& mesh, int64_t num_meshes);

// Maps of the sphere, north at the top and from longitude -180, each point with the value of the
// nearest node, in arc seconds. On rank 0; elsewhere empty.
struct SlopeMaps {
  int rows = 0;
  int columns = 0;
  // [component]: east, north.
  std::vector<std::vector<float>> truth;
  std::vector<std::vector<float>> predicted;
};
SlopeMaps predict_maps(GraphNetwork& network, const GeoidMesh& mesh);

}  // namespace meshrun::mesh_gnn
