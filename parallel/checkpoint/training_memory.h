// What a rank keeps in memory of a training run, beyond the life of the model and the optimizer
// that it was taken from, and how one rank's memory becomes every rank's.
//
//   StateRecorder recorder(*model, optimizer, kept);
//   recorder.record(step);                              // after each step
//   TrainingMemory memory = recorder.memory(rank, world_size);
//   ... another world; the model and the optimizer are made anew ...
//   const int64_t step = spread_memory(memory, root, *model, optimizer, world, kept);
//
// Parameters, moments and kept tensors are kept, not copied: a memory is good for as long as nobody
// writes them, which their version counters show (tensor_versions.h). Whatever else a training has
// is copied when it is recorded.
//
// Threads: one at a time. Errors: those of the group's collectives; c10::ValueError, the same on
// all ranks:
//   before anything is changed, where the root has no memory, a rank's optimizer is of another kind
//   than the root's memory, it keeps other names, a tensor's name, dtype or shape differs (a buffer
//   that only the forward pass defines is missing in a new module), or ranks that remember the
//   root's step keep different bytes;
//   at the end, where a `load` function of a kept value raises on a rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/checkpoint/tensor_versions.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/optimizer_state.h"

namespace meshrun {

struct TrainingMemory {
  // Number of steps that were done.
  int64_t step = 0;
  // This rank's place when they were done.
  int rank = 0;
  int world_size = 1;
  // Parameters and buffers, by name.
  std::map<std::string, at::Tensor> tensors;
  // By parameter.
  std::map<std::string, ParameterState> states;
  std::vector<GroupOptions> options;
  // What the program keeps: tensors, and bytes.
  std::map<std::string, at::Tensor> kept;
  std::map<std::string, std::string> kept_values;
  // States of the random generators (random_streams.h) when `step` was done.
  std::map<std::string, std::string> generators;
  // Several ranks had the same states when they were compared last, which is the caller's part.
  bool draws_alike = false;
  // Versions of the tensors that are not copied.
  TensorVersions versions;
};

// Whether a rank holds all of it: no parameter, buffer and moment lies in pieces on several ranks.
bool is_whole(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer);

// The state of a training when it was recorded, and what has changed since. Module, optimizer and
// kept values must outlive this, except that memory() calls no function of the kept values.
class StateRecorder {
 public:
  // record() and memory() require is_whole, and that each parameter which the optimizer steps is
  // the module's.
  StateRecorder(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                const KeptValues& kept);

  // `steps` are done. Copies buffers, options, kept bytes and generators. Takes some us per
  // parameter, and the time to copy the buffers. `is_watched`: written() must notice each write.
  // LibTorch's SGD writes parameters without counting, so their bits are read then; on a CPU that
  // costs about a third of its step.
  void record(IntArgument steps, BoolArgument is_watched = true);

  // The first parameter, moment or kept tensor that was written since; empty: none. Buffers are not
  // asked: they change in the forward pass, and the copies count.
  std::string written() const;
  // Whether the optimizer has an option that differs from what was recorded.
  bool has_other_options() const;
  // The first of the kept bytes that differ; empty: none.
  std::string changed() const;
  // Some parameter, of the module or a kept one, has a gradient.
  bool has_gradients() const;

  // As recorded; parameters, moments and kept tensors as they are now.
  TrainingMemory memory(IntArgument rank, IntArgument world_size) const;

 private:
  struct Buffer {
    std::string name;
    at::Tensor tensor;
    bool is_kept = false;  // of a module that the program keeps
    at::Tensor copy = {};
  };
  void list_tensors();
  void copy_buffers();

  const torch::nn::Module& module_;
  torch::optim::Optimizer& optimizer_;
  const KeptValues& kept_;
  bool is_listed_ = false;
  uint64_t listed_states_ = 0;  // token of the optimizer's, which makes them in its first step
  TensorVersions versions_;
  std::optional<int64_t> bits_;  // their digest, where writes are not counted
  std::vector<Buffer> buffers_;
  int64_t steps_ = 0;
  std::vector<GroupOptions> options_;
  std::map<std::string, std::string> kept_values_;
  std::map<std::string, std::string> generators_;
};

// Digest of the parameters, moments and kept tensors that every rank has all of: equal on all ranks
// whose states are. Buffers do not count. Reads all of them.
int64_t digest_of_state(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                        const KeptValues& kept);

struct SpreadMemory {
  int64_t step = 0;
  // digest_of_state() of what each rank has now.
  int64_t digest = 0;
};

// Collective over `group`: the memory of rank `root` becomes the state of every rank's module,
// optimizer and kept values, and a comparison of digests shows that it arrived. A rank that
// remembers the same step takes from its own memory what is equal there.
//
// Random generators: if the root's memory says that the ranks drew alike, and so do the states of
// the ranks that remember the same step, all ranks get these. Else a rank that remembers it from
// the same rank of a world of the same size gets its own back, and any other a stream derived from
// the root's state and its own rank. Other ranks' `memory` is read for nothing else.
SpreadMemory spread_memory(const std::optional<TrainingMemory>& memory, IntArgument root,
                           torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                           const GroupArgument& group, const KeptValues& kept = {});

}  // namespace meshrun
