// What the job leaves behind: a sentence, a JSON file, a picture. Rank 0 writes them.
#pragma once

#include <optional>
#include <string>

#include "jobs/swe/evaluation.h"
#include "jobs/swe/options.h"
#include "jobs/swe/training.h"

namespace meshrun::swe {

struct Outcome {
  TrainingResult training;
  std::optional<TestErrors> test;  // absent with --no-evaluation
  std::string data_origin;
  double data_seconds = 0;
  int world_size = 1;
  int data_ranks = 1;
  int spatial_ranks = 1;
  std::string backend;
};

// One line for people, then the files written.
std::string summary(const Outcome& outcome, const Options& options);

// Write the files that the options name. Raise std::runtime_error, which names the path.
void write_report(const Outcome& outcome, const Options& options);
void write_picture(const Shown& shown, const Outcome& outcome, const Options& options);

}  // namespace meshrun::swe
