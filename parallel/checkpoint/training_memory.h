// What a rank keeps in memory of a training run, beyond the life of the model and the optimizer
// that it was taken from, and how one rank's memory becomes every rank's.
//
//   TrainingMemory memory = remember(*model, optimizer, step);
//   ... another world; the model and the optimizer are made anew ...
//   const int64_t step = spread_memory(memory, root, *model, optimizer, world);
//
// Tensors are kept, not copied: a memory is good for as long as nobody changes them.
//
// Threads: one at a time. Errors: those of the group's collectives; c10::ValueError for a model or
// an optimizer of another kind than the root's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "parallel/base/arguments.h"
#include "parallel/collectives/group_argument.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun {

struct TrainingMemory {
  // Done.
  int64_t step = 0;
  // Parameters and buffers, by name.
  std::map<std::string, at::Tensor> tensors;
  // By parameter.
  std::map<std::string, ParameterState> states;
  // Of the random generators, by kind of device, when `step` was done.
  std::map<std::string, std::string> generators;
};

// Whether a rank holds all of it: no parameter and no moment lies in pieces on several ranks.
bool is_whole(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer);

// The present states of the random generators. Reading them at the end of a step costs a few us.
std::map<std::string, std::string> generators_now(const torch::nn::Module& module);

// `generators`: of the end of `step`. Requires is_whole.
TrainingMemory remember(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                        IntArgument step, std::map<std::string, std::string> generators);

// Collective over `group`: the memory of rank `root` becomes the state of every rank's module,
// optimizer and random generators, and a comparison of digests shows that it arrived. Other ranks'
// `memory` is not read. Returns the step.
int64_t spread_memory(const std::optional<TrainingMemory>& memory, IntArgument root,
                      torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                      const GroupArgument& group);

}  // namespace meshrun
