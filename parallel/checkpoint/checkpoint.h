// Checkpoints of a training run that any number of ranks writes and any other number reads.
//
//   CheckpointDirectory checkpoints(dir, {.identity = {{"job", "geoid"}, {"--lr", "0.002"}}});
//   TrainingProgress progress = checkpoints.load(*model, optimizer).value_or(TrainingProgress{});
//   ...
//   checkpoints.save(*model, optimizer, progress);
//
// DIR/step-N holds model.safetensors (parameters and buffers by their names in the module),
// optimizer.safetensors ("exp_avg.<name>", "step.<name>" and so on, see optimizer_state.h),
// kept.safetensors where the program keeps tensors (kept_values.h), and manifest.json (the step,
// the run's identity, the optimizer's options, the sampler's state, sizes and hashes). The tensors
// are the unsharded ones: pieces of a sharded parameter (nn/sharded_parameters.h), and the moments
// that are cut like it, are gathered within the shard group of rank 0. All other parameters and
// buffers are equal on all ranks; rank 0's are written. Python's safetensors reads the files.
//
// Only rank 0 sees the directory, so no file system need be shared while it stays on its host. It
// writes aside, flushes and
// renames: a crash leaves the former checkpoints. Under meshrun the coordinator commits a
// checkpoint before it is renamed, so that a rank which the job has left behind writes none; one
// that was committed and not renamed is finished by the next load(). The newest complete one is
// read; older ones are removed.
//
// load() sets the optimizer's options as they were saved; what the program sets afterwards wins.
//
// Random numbers: LibTorch's default generators of the CPU and of the model's device, and the
// counter of random operations on sharded tensors. Where all ranks had the same state, load() gives
// it to all. Else each rank gets its own back, if the world has the same size; in a world of
// another size, each gets a stream that is derived from rank 0's state and its own rank.
//
// Both calls are collective: all ranks of `group` call them, with the same module, optimizer,
// progress and kept values. Errors are the same on every rank, name the file, and leave model,
// optimizer and directory as they were; no older checkpoint is read instead:
//   CheckpointDamagedError    a file is truncated, damaged or missing, or of a later format
//   CheckpointMismatchError   the checkpoint is of another run, model or optimizer, or keeps other
//                             values: both sides
//   CheckpointFileError       the system refuses to read or write; load(): the job's newest commit
//                             is not on the host where rank 0 is now
//   CheckpointRefusedError    another generation of the job holds the right to write checkpoints
//   c10::NotImplementedError  the optimizer is none of Adam, AdamW, SGD; a parameter or a buffer is
//                             a ShardTensor
//   CollectiveForbiddenError  the call stands inside ElasticState::update()
//   c10::ValueError           kept bytes differ between ranks
// What a kept value's `save` raises on a rank is a CheckpointFileError on all; what its `load`
// raises a CheckpointMismatchError, after the other values were loaded.
// Threads: one at a time.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "c10/util/Exception.h"
#include "parallel/base/arguments.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

class CheckpointError : public c10::Error {
  using Error::Error;
};
class CheckpointDamagedError : public CheckpointError {
  using CheckpointError::CheckpointError;
};
class CheckpointMismatchError : public CheckpointError {
  using CheckpointError::CheckpointError;
};
class CheckpointFileError : public CheckpointError {
  using CheckpointError::CheckpointError;
};
class CheckpointRefusedError : public CheckpointError {
  using CheckpointError::CheckpointError;
};

struct TrainingProgress {
  // Done.
  int64_t step = 0;
  // Whatever the sampler needs to give the same samples next.
  std::map<std::string, std::string> sampler = {};
};

struct CheckpointOptions {
  // What must be the same in two runs for the second to go on where the first stopped; by flag.
  std::map<std::string, std::string> identity = {};
  // Complete checkpoints that stay, at least 1.
  IntArgument keep = 2;
  // All ranks that train; the world where absent.
  GroupArgument group = {};
  // A file of a format before this one: if the directory holds it and no checkpoint, load() raises
  // CheckpointMismatchError instead of starting anew.
  std::string former_file = {};
};

class CheckpointDirectory {
 public:
  // Not collective. Raises c10::ValueError for `keep` below 1.
  CheckpointDirectory(std::string path, CheckpointOptions options);

  void save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
            const TrainingProgress& progress, const KeptValues& kept = {});

  // Absent where the directory has no complete checkpoint: nothing is changed.
  std::optional<TrainingProgress> load(torch::nn::Module& module,
                                       torch::optim::Optimizer& optimizer,
                                       const KeptValues& kept = {});

 private:
  bool holds_rank_0(const GroupArgument::Handle& shard_group, c10::Device device);

  const std::string path_;
  const CheckpointOptions options_;
  // By shard group: whether rank 0 is one of its ranks.
  std::map<GroupArgument::Handle, bool> holds_rank_0_;
};

// Writes the unsharded parameters to a file of this rank's own; for comparing ranks and runs.
// Collective over the groups of sharded parameters. read_parameters.h reads it.
void write_parameters(const std::string& path, const torch::nn::Module& module);

}  // namespace meshrun
