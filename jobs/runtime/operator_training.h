// Training of a neural operator on a mesh of ranks: the groups along dp share the batch, the ranks
// of a group each sample. The result depends on the global batch, not on how many ranks share it.
//
//   OperatorTraining training(elastic, options, identity, *network, mesh);
//   DistributedDataParallel model(network, training.data_parallel_options());
//   const TrainingResult result = training.run(samples, [&](const auto& chosen) { ... });
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "jobs/runtime/operator_options.h"
#include "jobs/runtime/rank_mesh.h"
#include "jobs/runtime/training.h"
#include "parallel/nn/gradient_synchronizer.h"

namespace meshrun::jobs {

// As Training (training.h).
class OperatorTraining {
 public:
  // `identity`: the job's own flags that change the result. Raises UsageError on every rank where a
  // group along dp would have no sample of a batch.
  OperatorTraining(ElasticContext& elastic, const OperatorOptions& options,
                   std::map<std::string, std::string> identity, torch::nn::Module& network,
                   const RankMesh& mesh);

  // For a DistributedDataParallel of the network, which averages gradients along dp.
  DistributedDataParallelOptions data_parallel_options() const;

  // Draws batches from `samples` samples, each once in an epoch. `errors_of` returns the errors of
  // this rank's samples of a batch, [chosen]; their mean over the batch is the loss.
  TrainingResult run(
      int64_t samples,
      const std::function<at::Tensor(const std::vector<int64_t>& chosen)>& errors_of);

 private:
  const OperatorOptions& options_;
  const RankMesh& mesh_;
  torch::optim::AdamW optimizer_;
  Training training_;
};

}  // namespace meshrun::jobs
