// What the job leaves behind: a sentence, a JSON file, a picture. Rank 0 writes them.
#pragma once

#include <optional>
#include <string>

#include "jobs/geoid/evaluation.h"
#include "jobs/geoid/options.h"
#include "jobs/geoid/training.h"

namespace meshrun::geoid {

struct Outcome {
  TrainingResult training;
  std::optional<Errors> held_out;  // absent with --no-evaluation
  int64_t held_out_points = 0;
  int64_t training_points = 0;
  int64_t parameters = 0;
  double field_standard_deviation_m = 0;
  int world_size = 1;
  std::string backend;
};

// One line for people, ending with the files written.
std::string summary(const Outcome& outcome, const Options& options);

// Writes the files that the options name. Raises std::runtime_error, which names the path.
void write_report(const Outcome& outcome, const Options& options);
// The outcome must have been evaluated.
void write_picture(const Prediction& prediction, const Outcome& outcome, const Options& options);

}  // namespace meshrun::geoid
