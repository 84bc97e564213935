// The end of a job that trains a neural operator on a mesh of ranks.
#pragma once

#include "jobs/runtime/ending.h"
#include "jobs/runtime/operator_options.h"
#include "jobs/runtime/rank_mesh.h"

namespace meshrun::jobs {

// finish(), which also tells the mesh and the OperatorOptions; it sets the ending's ranks and rate.
void finish_operator(ElasticContext& elastic, const OperatorOptions& options,
                     const TrainingResult& training, const torch::nn::Module& network,
                     const RankMesh& mesh, Ending ending);

}  // namespace meshrun::jobs
