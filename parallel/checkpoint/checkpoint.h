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
// are the unsharded ones, whoever holds them: whole on every rank, in pieces of a sharded parameter
// (nn/sharded_parameters.h), as a ShardTensor, or with moments in slices
// (zero_redundancy_optimizer.h). Python's safetensors reads the files.
//
// Every rank writes its own ranges of the files, and reads what it needs: no rank ever has more
// than its own state and 256 MiB. What all ranks hold is written by all, a share each. A sample of
// each such tensor is compared; where ranks have other values, and for buffers, rank 0's are
// written. Pieces that are not one range of a file travel to ranks that get ranges.
//
// Hosts need not share DIR. Ranks find out which of them see one directory. Where there are
// several, each has files of its own, model-00001-of-00002.safetensors and so on, with all that is
// not in pieces and the pieces of its ranks, and the same manifest.json. load() takes from every
// host what it has: one host is enough for a training without pieces. Copied into one directory,
// the files are read by any world.
//
// A crash leaves the former checkpoints. Under meshrun the coordinator commits a checkpoint before
// it is renamed, so that a rank which the job has left behind writes none; one that was committed
// and not renamed everywhere is finished by the next load(). The newest complete one is read; older
// ones are removed. A newer step-N without manifest.json is passed over, and rank 0 says so; a save
// that reaches its step keeps it as step-N.incomplete-1.
//
// save_async() copies this rank's ranges into memory that stays for the next one, and returns;
// threads write them. Whatever comes next waits for it: save(), save_async(), load(), wait(), and
// the end of ElasticContext::run(), of the directory object, and of DistributedManager. A rank that
// is lost meanwhile leaves the former checkpoint.
//
// Nobody waits for a disk under a collective's timeout. Every 10 s a rank says how far it is;
// `timeout` is a limit for the whole save.
//
// load() sets the optimizer's options as they were saved; what the program sets afterwards wins.
//
// Random numbers: LibTorch's default generators of the CPU and of the model's device, and the
// counter of random operations on sharded tensors. Where all ranks had the same state, load() gives
// it to all. Else each rank gets its own back, if the world has the same size; in a world of
// another size, each gets a stream that is derived from rank 0's state and its own rank.
//
// All calls are collective: all ranks of `group` call them, with the same module, optimizer,
// progress and kept values. Errors are the same on every rank, name the file, and leave model,
// optimizer and directory as they were (except that load() reads twice, first to compare hashes: a
// disk that fails only then leaves a model that is partly filled); no older checkpoint is read
// instead:
//   CheckpointDamagedError    a file is truncated, damaged or missing, or of a later format
//   CheckpointMismatchError   the checkpoint is of another run, model or optimizer, or keeps other
//                             values: both sides
//   CheckpointFileError       the system refuses to read or write, or `timeout` is over; load():
//                             the job's newest commit, or a part of it, is on no host of the job
//   CheckpointRefusedError    another generation of the job holds the right to write checkpoints
//   c10::NotImplementedError  the optimizer is none of Adam, AdamW, SGD; a parameter or a buffer is
//                             a ShardTensor of summands (Partial)
//   CollectiveForbiddenError  the call stands inside ElasticState::update()
//   c10::ValueError           kept bytes differ between ranks
// What a kept value's `save` raises on a rank is a CheckpointFileError on all; what its `load`
// raises a CheckpointMismatchError, after the other values were loaded. What became of save_async()
// is raised by the next call, which then does nothing else.
// Threads: one at a time.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "c10/util/Exception.h"
#include "parallel/base/arguments.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

namespace detail {
class CheckpointWriter;
}

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
  // Complete checkpoints that stay, at least 1: the newest ones.
  IntArgument keep = 2;
  // So do those that were written less than so long ago; absent: age does not count.
  std::optional<std::chrono::seconds> keep_for = {};
  // So do those whose step is a multiple of it, for ever; 0: none.
  IntArgument keep_every = 0;
  // Limit for writing one; absent: none.
  std::optional<std::chrono::milliseconds> timeout = {};
  // A program that rank 0 calls with the path of each checkpoint once it is durable, one call after
  // the other, to copy it to an object store, say; a rank of every other directory of a job whose
  // hosts share none does, too. Until the call has ended the checkpoint stays. Only the end of the
  // job waits for it. If it fails that is said, and nothing changes. Empty: none.
  std::string on_commit = {};
  // All ranks that train; the world where absent.
  GroupArgument group = {};
  // A file of a format before this one: if the directory holds it and no checkpoint, load() raises
  // CheckpointMismatchError instead of starting anew.
  std::string former_file = {};
};

class CheckpointDirectory {
 public:
  // Not collective. Raises c10::ValueError for `keep` below 1 or a negative `keep_every`.
  CheckpointDirectory(std::string path, CheckpointOptions options);

  // Makes the directory where it is absent. Raises CheckpointFileError where the file system of a
  // host refuses that, or a file there: before a training, not at its first checkpoint. It
  // accepts a full disk: there may be room when a checkpoint is written.
  void check_writable() const;

  void save(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
            const TrainingProgress& progress, const KeptValues& kept = {});

  // As save(), but returns when the values are copied.
  void save_async(const torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                  const TrainingProgress& progress, const KeptValues& kept = {});
  // Waits until it is written, and raises what became of it.
  void wait();
  // Whether this rank still writes. Not collective.
  bool is_writing() const;

  // Whether this job has committed a checkpoint here, in any of its generations: a job that was
  // started again goes on from its own, and leaves alone what lay here before. The coordinator
  // knows; outside meshrun: false.
  bool has_committed() const;

  // Absent where the directory has no complete checkpoint: nothing is changed.
  std::optional<TrainingProgress> load(torch::nn::Module& module,
                                       torch::optim::Optimizer& optimizer,
                                       const KeptValues& kept = {});

 private:
  // Shared with copies of this object.
  std::shared_ptr<detail::CheckpointWriter> writer_;
  std::string path_;
  CheckpointOptions options_;
};

// Waits for the saves of this process that go on in the background, and for the calls of on_commit.
// Not collective. What they ended with is returned, and raised again by no other call: a
// CheckpointError, or null. ElasticContext::run() calls it.
std::exception_ptr finish_background_saves();
// Gives them up, since their world is over.
void give_up_background_saves();

// Writes the unsharded parameters to a file of this rank's own; for comparing ranks and runs.
// Collective over the groups of sharded parameters. read_parameters.h reads it.
void write_parameters(const std::string& path, const torch::nn::Module& module);

}  // namespace meshrun
