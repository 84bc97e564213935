// What the job leaves behind: a sentence and a JSON file. Rank 0 writes them.
#pragma once

#include <optional>
#include <string>

#include "jobs/darcy/evaluation.h"
#include "jobs/darcy/network.h"
#include "jobs/darcy/options.h"
#include "jobs/darcy/training.h"

namespace meshrun::darcy {

struct Outcome {
  jobs::TrainingResult training;
  std::optional<TestErrors> test;  // absent with --no-evaluation
  DataShape shape;
  std::string data_origin;
  double data_seconds = 0;
  bool data_solved = false;
};

// On every rank, as jobs::finish().
void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const DarcyNetwork& network, const jobs::RankMesh& mesh);

}  // namespace meshrun::darcy
