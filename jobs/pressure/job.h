// What the jobs vit and unet share: training on a mesh dp x domain, evaluation, report.
//
// The groups along dp share the batch, and the ranks of a group each sample: rank r holds a range
// of its columns, and of all activations, as ShardTensors. The model is an ordinary one. The result
// depends on the batch and the seed, not on the mesh.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "jobs/pressure/model.h"
#include "jobs/pressure/options.h"

namespace meshrun::pressure {

// The flags of a job's network by name, for checkpoints and the report.
using NetworkFlags = std::map<std::string, std::string>;

// All of the job, on every rank. `make_network` gets the shape of a field, columns first, and is
// called after the seed is set. Raises what the parts of the job raise.
void run(const Options& options, const NetworkFlags& flags,
         const std::function<Network(int64_t columns, int64_t rows)>& make_network);

}  // namespace meshrun::pressure
