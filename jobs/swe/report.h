// What the job leaves behind: a sentence, a JSON file, a picture. Rank 0 writes them.
#pragma once

#include <optional>
#include <string>

#include "jobs/swe/evaluation.h"
#include "jobs/swe/options.h"
#include "jobs/swe/training.h"

namespace meshrun::swe {

struct Outcome {
  jobs::TrainingResult training;
  std::optional<TestErrors> test;  // absent with --no-evaluation
  std::string data_origin;
  double data_seconds = 0;
};

// On every rank, as jobs::finish().
void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const SweNetwork& network, const jobs::RankMesh& mesh);

// Writes the picture that the options name. Raises std::runtime_error, which names the path. The
// outcome must have been evaluated.
void write_picture(const Shown& shown, const Outcome& outcome, const Options& options);

}  // namespace meshrun::swe
