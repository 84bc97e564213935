// What a training job leaves behind: a sentence and a JSON file.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "jobs/runtime/training.h"
#include "jobs/runtime/training_options.h"
#include "parallel/elastic/elastic_context.h"

namespace meshrun::jobs {

// What differs between jobs.
struct Ending {
  // "relative L2 test error 3.10 %"; empty where nothing was evaluated.
  std::string result;
  // "2 ranks", "111 samples/s".
  std::string ranks;
  std::string rate;
  // What the evaluation found, for the daemon.
  std::map<std::string, double> metrics;
  // The job's own entries of the report, before those that all jobs have.
  nlohmann::ordered_json entries = nlohmann::ordered_json::object();
};

// The end of a job's body, on every rank. Rank 0 writes the report that the options name and prints
//   darcy: relative L2 test error 3.10 % after 500 steps on 2 ranks, 43.1 s of training, 9 steps/s
//   darcy: report /home/ada/darcy.json
// when run() of `elastic` ends: a body that is run again writes the report again, and has printed
// nothing. Raises std::runtime_error, which names the path; and CheckpointFileError, on all
// ranks and when everything else is written and printed, for a last checkpoint that is not written.
void finish(ElasticContext& elastic, const TrainingOptions& options, const TrainingResult& training,
            const torch::nn::Module& network, const Ending& ending);

}  // namespace meshrun::jobs
