// The course of a training job: checkpoints, steps, what all ranks must see alike, and the stop.
//
//   Training training(elastic, options, {{"--width", "16"}}, *network, optimizer);
//   DistributedDataParallel model(network);
//   const TrainingResult result = training.run([&](int64_t step) { return loss_of(model, step); });
//
// Between two agreements (agreement.h) a rank waits for others only within its steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "jobs/runtime/training_options.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/elastic/elastic_state.h"

namespace meshrun::jobs {

struct TrainingResult {
  // Above 0 where a checkpoint was read, and in a world that follows another one.
  int64_t first_step = 0;
  int64_t steps = 0;  // done in all
  // That of the last step, as it was shown. Also after a run that has taken no step, because a
  // memory or a checkpoint of the last step tells it; absent in checkpoints of earlier versions.
  std::optional<double> loss;
  double seconds = 0;  // of the steps from first_step on
  // Why the last checkpoint is not written, as a sentence: all ranks have one. finish() raises it
  // when the job's other files are written. Empty: it is written, or none was wanted.
  std::string unsaved;

  double steps_per_second() const {
    return seconds > 0 ? static_cast<double>(steps - first_step) / seconds : 0;
  }
  // Samples per second of all ranks; `batch` is the batch of all ranks together.
  double samples_per_second(int64_t batch) const {
    return static_cast<double>(batch) * steps_per_second();
  }
};

// What the log and the daemon show of a step.
struct ShownLoss {
  double loss = 0;
  std::map<std::string, double> metrics = {};
};

// All calls are collective over the world, which must have been joined. Threads: one at a time.
class Training {
 public:
  // In a world that follows another one, `network` and `optimizer` get the state of the rank that
  // had done most steps there. Otherwise they get the state of the newest checkpoint, with --resume
  // or where this job has written one before it was started again, and --checkpoint-dir is tried if
  // steps are left.
  // `identity`: the flags, besides --steps, --seed and --lr, that a run which goes on from a
  // checkpoint must share with the one that wrote it. The arguments must outlive this. Raises
  // CheckpointError.
  Training(ElasticContext& elastic, const TrainingOptions& options,
           std::map<std::string, std::string> identity, torch::nn::Module& network,
           torch::optim::Optimizer& optimizer, const std::string& former_file = "");

  // Takes the steps that are left: a gradient of `loss_of`, this rank's loss as a scalar, and the
  // optimizer's step at the one-cycle rate. `show` gets the mean of the ranks' losses. On a stop
  // signal to any rank all of them save at the same step and raise Stopped; likewise they leave the
  // world where the coordinator wants another one. A checkpoint that the file system refuses is a
  // warning, except the one at the end, which the result tells, and the one of a stop, which raises
  // CheckpointFileError. At the end each rank writes its parameters, if --dump-parameters asks for
  // it. In a world that follows another one, the checkpoint of the step that was done last there is
  // written again if it was due: the rank that was lost may have been lost before it was written.
  TrainingResult run(
      const std::function<at::Tensor(int64_t step)>& loss_of,
      const std::function<ShownLoss(double mean)>& show = [](double mean) {
        return ShownLoss{mean};
      });

 private:
  // Reads the checkpoint to go on from, if there is one, and says on rank 0 which it is.
  void load();
  // Computes the gradients of the next step, and sets its learning rate. Returns this rank's loss.
  at::Tensor gradients(const std::function<at::Tensor(int64_t step)>& loss_of);
  // Ends the step.
  void update(const std::function<void()>& more);
  // Every --checkpoint-every steps, and at the end: the result says why that one is not written.
  void save_if_due();
  // A checkpoint that cannot be written is said once, until one is written again; where it must be
  // written it is the job's failure.
  // The others are written while training goes on.
  void save(bool must);
  // Waits for the checkpoint that is being written, and says what became of it.
  void settle();
  // `problem`: why it is not written; empty: it is.
  void tell_of(int64_t step, const std::string& problem);
  // The sentence that says why a checkpoint is not written, with the room on the disk.
  std::string unwritten(int64_t step, const std::string& problem) const;
  // Prints a line on rank 0.
  void say(const std::string& what) const;
  void dump_parameters() const;

  ElasticContext& elastic_;
  const TrainingOptions& options_;
  torch::nn::Module& network_;
  torch::optim::Optimizer& optimizer_;
  std::optional<CheckpointDirectory> checkpoints_;
  TrainingResult result_;
  bool unsaved_ = false;
  // Step of the checkpoint that is being written.
  std::optional<int64_t> writes_step_;
  bool is_from_memory_ = false;
  // Last, so that it ends first: it keeps the others' state for the next world.
  ElasticState state_;
};

}  // namespace meshrun::jobs
