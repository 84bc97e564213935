// What the job leaves behind: a sentence, a JSON file, a picture. Rank 0 writes them.
#pragma once

#include <optional>

#include "jobs/geoid/evaluation.h"
#include "jobs/geoid/options.h"
#include "jobs/geoid/training.h"

namespace meshrun::geoid {

struct Outcome {
  jobs::TrainingResult training;
  std::optional<Errors> held_out;  // absent with --no-evaluation
  int64_t held_out_points = 0;
  int64_t training_points = 0;
  double field_standard_deviation_m = 0;
};

// On every rank, as jobs::finish().
void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const GeoidNetwork& network);

// Writes the picture that the options name. Raises std::runtime_error, which names the path.
// The outcome must have been evaluated.
void write_picture(const Prediction& prediction, const Outcome& outcome, const Options& options);

}  // namespace meshrun::geoid
