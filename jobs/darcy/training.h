// Training on the mesh: the result depends on the global batch, not on how many ranks share it.
#pragma once

#include "jobs/darcy/data.h"
#include "jobs/darcy/network.h"
#include "jobs/darcy/options.h"
#include "jobs/runtime/rank_mesh.h"
#include "jobs/runtime/training.h"

namespace meshrun::darcy {

// Trains on the samples' first part; the loss is the mean relative error. Writes checkpoints as the
// options say. On a stop signal to any rank, all of them write a checkpoint at the same step and
// raise jobs::Stopped.
jobs::TrainingResult train(ElasticContext& elastic, DarcyNetwork& network, const Samples& samples,
                           const jobs::RankMesh& mesh, const Options& options);

}  // namespace meshrun::darcy
