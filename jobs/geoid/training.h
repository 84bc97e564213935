// Training in data parallel: the result depends on the global batch, not on how many ranks share
// it.
#pragma once

#include <cstdint>
#include <span>

#include "jobs/geoid/field.h"
#include "jobs/geoid/network.h"
#include "jobs/geoid/options.h"
#include "jobs/runtime/training.h"

namespace meshrun::geoid {

// Trains `network` on `points` with all ranks of the world, which must have been joined. Writes
// checkpoints as the options say. On a stop signal to any rank, all of them write a checkpoint at
// the same step and raise jobs::Stopped.
jobs::TrainingResult train(ElasticContext& elastic, GeoidNetwork& network, const Field& field,
                           std::span<const int64_t> points, const Options& options);

}  // namespace meshrun::geoid
