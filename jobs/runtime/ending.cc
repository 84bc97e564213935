#include "jobs/runtime/ending.h"

#include <ATen/Functions.h>

#include <iostream>

#include "jobs/runtime/all_reduce.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun::jobs {
namespace {

// Number of parameters of the unsharded network.
int64_t number_of_parameters(const torch::nn::Module& network) {
  const auto shards = parameter_shards(network);
  int64_t number = 0;
  for (const auto& item : network.named_parameters()) {
    const auto shard = shards.find(item.key());
    number += shard == shards.end() ? item.value().numel()
                                    : c10::multiply_integers(shard->second.global_shape);
  }
  return number;
}

using nlohmann::ordered_json;

ordered_json report_of(const TrainingOptions& options, const TrainingResult& training,
                       const torch::nn::Module& network, const Ending& ending) {
  const DistributedManager& manager = DistributedManager::get();
  ordered_json report = {{"job", options.job}};
  report.update(ending.entries);
  report.update({{"steps", training.steps},
                 {"first_step", training.first_step},
                 {"last_loss", training.loss ? ordered_json(*training.loss) : ordered_json()},
                 {"train_seconds", training.seconds},
                 {"steps_per_second", training.steps_per_second()},
                 {"world_size", manager.world_size()},
                 {"backend", manager.backend()},
                 {"seed", options.seed},
                 {"learning_rate", options.learning_rate},
                 {"parameters", number_of_parameters(network)},
                 {"png", absolute(options.png)},
                 {"checkpoint_dir", absolute(options.checkpoint_dir)}});
  return report;
}

std::string summary_of(const TrainingOptions& options, const TrainingResult& training,
                       const Ending& ending) {
  const std::string job = options.job + ": ";
  std::string text = job;
  if (!ending.result.empty()) text += ending.result + " after ";
  text += std::to_string(training.steps) + " steps on " + ending.ranks +
          format(", %.1f s of training, ", training.seconds) + ending.rate;
  if (!options.report.empty()) text += "\n" + job + "report " + absolute(options.report);
  if (!options.no_evaluation && !options.png.empty()) {
    text += "\n" + job + "picture " + absolute(options.png);
  }
  return text;
}

}  // namespace

void finish(ElasticContext& elastic, const TrainingOptions& options, const TrainingResult& training,
            const torch::nn::Module& network, const Ending& ending) {
  DistributedManager& manager = DistributedManager::get();
  const bool is_first = manager.rank() == 0;
  if (!options.report.empty() && is_first) {
    write_file_atomically(options.report,
                          report_of(options, training, network, ending).dump(2) + "\n");
  }
  const std::string summary = summary_of(options, training, ending);
  Progress(options.job, options.steps, options.log_every)
      .finished(training.steps, training.loss, ending.metrics, summary);
  const auto print = [summary] { std::cout << summary << std::endl; };
  if (!training.unsaved.empty()) {
    if (is_first) print();
    // The first rank that fails ends the others: all are here before.
    all_reduced(*manager.world(), manager.device(), at::zeros({1}));
    throw CheckpointFileError(training.unsaved);
  }
  if (is_first) elastic.at_end(print);
}

}  // namespace meshrun::jobs
