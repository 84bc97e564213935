// What an elastic training hands from one world to the next: model, optimizer, random generators
// and the number of steps done. See elastic_context.h.
//
// Threads: one at a time. Errors: those of collectives, and of training_memory.h.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "parallel/base/arguments.h"
#include "parallel/elastic/elastic_context.h"
#include "parallel/elastic/elastic_steps.h"

namespace meshrun {

class ElasticState {
 public:
  // Module and optimizer must outlive this. Says to the coordinator that this rank goes on in
  // process, if it can.
  ElasticState(ElasticContext& context, torch::nn::Module& module,
               torch::optim::Optimizer& optimizer);
  // Leaves the state in the context, for the next world.
  ~ElasticState();
  ElasticState(const ElasticState&) = delete;
  ElasticState& operator=(const ElasticState&) = delete;

  // Collective over the world: all ranks take the state of the one that has done most steps.
  // Returns that number; absent where no rank has a state: nothing is changed.
  std::optional<int64_t> restore();
  // `steps` are done, and the optimizer has stepped.
  void commit(IntArgument steps);

  // Steps first to last - 1, each committed at its end. After every `agree_every` steps (at least
  // 1, else c10::ValueError) the ranks agree whether to stand still; a loop that wants checkpoints
  // at that point uses commit() and ElasticContext::stand_still() itself.
  ElasticSteps steps(IntArgument first, IntArgument last, IntArgument agree_every = 10);

 private:
  ElasticContext& context_;
  torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  const bool is_whole_;
  int64_t steps_ = -1;
  std::map<std::string, std::string> generators_;
  // Of the first step after restore(), which is logged.
  std::string place_;
};

}  // namespace meshrun
