// Training on the mesh: the result depends on the global batch, not on how many ranks share it.
#pragma once

#include "jobs/runtime/rank_mesh.h"
#include "jobs/runtime/training.h"
#include "jobs/swe/data.h"
#include "jobs/swe/network.h"
#include "jobs/swe/options.h"

namespace meshrun::swe {

// |predicted - truth| / |reference| of each sample over the whole field and all variables, each
// divided by its scale: [batch]. Collective over the spatial group; its gradient is that of the
// whole field's error.
at::Tensor relative_errors(const at::Tensor& predicted, const at::Tensor& truth,
                           const at::Tensor& reference, const at::Tensor& scales,
                           const jobs::RankMesh& mesh);

// Trains on all intervals of the training's trajectories; the loss is the mean error of a state one
// interval later, relative to the change in it. Writes checkpoints as the options say. On a stop
// signal to any rank, all of them write a checkpoint at the same step and raise jobs::Stopped.
jobs::TrainingResult train(ElasticContext& elastic, SweNetwork& network,
                           const Trajectories& trajectories, const jobs::RankMesh& mesh,
                           const Options& options);

}  // namespace meshrun::swe
