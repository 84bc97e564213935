// Training with the graph split over ranks: the result depends on the seed, not on their number.
#pragma once

#include "jobs/mesh_gnn/geoid_mesh.h"
#include "jobs/mesh_gnn/options.h"
#include "jobs/runtime/training.h"
#include "parallel/nn/graph/graph_network.h"

namespace meshrun::mesh_gnn {

GraphNetwork make_network(const Options& options);

// Trains `network`, which is marked as shared over the world, with all ranks. Writes checkpoints as
// the options say. On a stop signal to any rank, all of them write a checkpoint at the same step
// and raise jobs::Stopped.
jobs::TrainingResult train(ElasticContext& elastic, GraphNetwork& network, const GeoidMesh& mesh,
                           const Options& options);

}  // namespace meshrun::mesh_gnn
