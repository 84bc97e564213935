#include "jobs/runtime/training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

#include "agent/agent.h"
#include "jobs/runtime/agreement.h"
#include "jobs/runtime/one_cycle.h"
#include "jobs/runtime/progress.h"
#include "jobs/runtime/stop.h"
#include "jobs/runtime/words.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::jobs {
namespace {

// Free space of the disk that has the directory, which may not exist yet, as the end of a message.
// Empty: unknown.
std::string room_on_disk(const std::string& directory) {
  constexpr double kMiB = 1 << 20;
  std::filesystem::path place = absolute(directory);
  std::error_code error;
  while (!std::filesystem::exists(place, error) && place.has_relative_path()) {
    place = place.parent_path();
  }
  const auto space = std::filesystem::space(place, error);
  if (error) return "";
  return format("; the disk has %.1f of %.1f MiB free", static_cast<double>(space.available) / kMiB,
                static_cast<double>(space.capacity) / kMiB);
}

// Name of the last step's loss in its checkpoint, beside the sampler.
constexpr char kLastLoss[] = "last_loss";

// Exactly; empty for none.
std::string text_of(const std::optional<double>& loss) { return loss ? format("%a", *loss) : ""; }

std::string checkpoint_of(int64_t step) { return "the checkpoint of step " + std::to_string(step); }

// Whether the coordinator has started this job's ranks before.
bool is_restarted() {
  const agent::Agent* const agent = DistributedManager::get().agent();
  return agent != nullptr && agent->assignment().generation > 1;
}

std::optional<double> loss_in(const std::string& text) {
  if (text.empty()) return std::nullopt;
  return std::strtod(text.c_str(), nullptr);
}

}  // namespace

Training::Training(ElasticContext& elastic, const TrainingOptions& options,
                   std::map<std::string, std::string> identity, torch::nn::Module& network,
                   torch::optim::Optimizer& optimizer, const std::string& former_file)
    : elastic_(elastic),
      options_(options),
      network_(network),
      optimizer_(optimizer),
      state_(elastic, network, optimizer) {
  if (!options.checkpoint_dir.empty()) {
    identity["job"] = options.job;
    // The learning rate of a step depends on how many there will be.
    identity["--steps"] = std::to_string(options.steps);
    identity["--seed"] = std::to_string(options.seed);
    identity["--lr"] = std::to_string(options.learning_rate);
    CheckpointOptions kept{.identity = std::move(identity),
                           .keep = options.keep_checkpoints,
                           .keep_every = options.keep_checkpoints_every,
                           .on_commit = options.on_commit,
                           .former_file = former_file};
    if (options.keep_checkpoints_for > 0) {
      kept.keep_for = std::chrono::seconds(options.keep_checkpoints_for);
    }
    if (options.checkpoint_timeout > 0) {
      // 0 would leave no time at all.
      const long milliseconds = std::max(1L, std::lround(1000 * options.checkpoint_timeout));
      kept.timeout = std::chrono::milliseconds(milliseconds);
    }
    checkpoints_.emplace(options.checkpoint_dir, std::move(kept));
  }
  state_.keep(
      "last loss", [this] { return text_of(result_.loss); },
      [this](const std::string& text) { result_.loss = loss_in(text); });
  state_.snapshot_every(options.snapshot_every);
  const auto before = state_.restore();
  is_from_memory_ = before.has_value();
  if (before) {
    result_.first_step = *before;
  } else if (checkpoints_) {
    load();
    // Not in a world that goes on from memory: training counts more there than a checkpoint.
    if (result_.first_step < options.steps) checkpoints_->check_writable();
  }
  result_.steps = result_.first_step;
}

void Training::load() {
  const std::string& directory = options_.checkpoint_dir;
  const bool has_own = is_restarted() && checkpoints_->has_committed();
  if (!has_own && !options_.resume) {
    if (!is_restarted()) return;
    say("begins with step 0 again: this job has no checkpoint in " + directory +
        " yet, and without --resume those of other jobs are not read");
    return;
  }
  const auto found = checkpoints_->load(network_, optimizer_);
  if (!found) return say("begins with step 0: there is no checkpoint in " + directory);
  result_.first_step = found->step;
  const auto loss = found->sampler.find(kLastLoss);
  // Absent in checkpoints of other steps, and of earlier versions.
  if (loss != found->sampler.end()) result_.loss = loss_in(loss->second);
  say("goes on after step " + std::to_string(found->step) + ", as in the newest checkpoint " +
      (has_own ? "of this job in " : "in ") + directory);
}

TrainingResult Training::run(const std::function<at::Tensor(int64_t step)>& loss_of,
                             const std::function<ShownLoss(double mean)>& show) {
  const ProcessGroupPtr world = DistributedManager::get().world();
  // Perhaps from a checkpoint, of which the state knows nothing.
  state_.commit(result_.steps);
  Progress progress(options_.job, options_.steps, options_.log_every);
  const auto start = std::chrono::steady_clock::now();
  // A rank was lost when this step was done: perhaps before its checkpoint was written.
  if (is_from_memory_ && result_.steps > 0) save_if_due();
  while (result_.steps < options_.steps) {
    const at::Tensor loss = gradients(loss_of);
    if (result_.steps + 1 == options_.steps) {
      // Before the update: each rank that has done the last step knows its loss, and hands it on.
      const ShownLoss shown = show(agree(*world, loss, {}).loss);
      update([&] { result_.loss = shown.loss; });
      save_if_due();
      progress.report(result_.steps, shown.loss, shown.metrics);
      break;
    }
    update([] {});
    save_if_due();
    if (result_.steps % kAgreeEvery != 0) continue;
    const Agreement agreement = agree(
        *world, loss, {stop_requested(), elastic_.is_quiesce_wanted(), elastic_.is_save_wanted()});
    const ShownLoss shown = show(agreement.loss);
    progress.report(result_.steps, shown.loss, shown.metrics);
    if (agreement.asked.stop) {
      stop_together();
      save(/*must=*/true);
      progress.stopped(result_.steps, shown.loss, shown.metrics);
      throw Stopped();
    }
    if (agreement.asked.stand_still) {
      // Ranks that go on do so from memory.
      if (agreement.asked.save) save(/*must=*/false);
      settle();
      elastic_.stand_still(result_.steps);
    }
  }
  result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  dump_parameters();
  return result_;
}

at::Tensor Training::gradients(const std::function<at::Tensor(int64_t step)>& loss_of) {
  const double rate = one_cycle(options_.learning_rate, result_.steps, options_.steps);
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(rate);
  optimizer_.zero_grad();
  const at::Tensor loss = loss_of(result_.steps);
  loss.backward();
  return loss;
}

void Training::update(const std::function<void()>& more) {
  state_.update([&] {
    optimizer_.step();
    more();
  });
  ++result_.steps;
}

void Training::save_if_due() {
  const bool is_last = result_.steps == options_.steps;
  if (!is_last && result_.steps % options_.checkpoint_every != 0) return;
  try {
    save(/*must=*/is_last);
  } catch (const CheckpointFileError& error) {
    result_.unsaved = error.what_without_backtrace();
    say(result_.unsaved + "; the job fails when its other files are written");
  }
}

void Training::settle() {
  if (!writes_step_) return;
  const int64_t step = *std::exchange(writes_step_, std::nullopt);
  try {
    checkpoints_->wait();
    tell_of(step, "");
  } catch (const CheckpointFileError& error) {
    tell_of(step, error.what_without_backtrace());
  }
}

void Training::tell_of(int64_t step, const std::string& problem) {
  const bool was_unsaved = std::exchange(unsaved_, !problem.empty());
  if (problem.empty() && was_unsaved) say(checkpoint_of(step) + " is written, the first one again");
  if (problem.empty() || was_unsaved) return;
  say(unwritten(step, problem) + "; training goes on and tries again");
}

void Training::save(bool must) {
  if (!checkpoints_) return;
  settle();
  try {
    // The samples of a step are a function of these two.
    TrainingProgress done{
        result_.steps,
        {{"seed", std::to_string(options_.seed)}, {"next_step", std::to_string(result_.steps)}}};
    if (result_.loss) done.sampler[kLastLoss] = text_of(result_.loss);
    if (!must) {
      checkpoints_->save_async(network_, optimizer_, done);
      writes_step_ = result_.steps;
      return;
    }
    checkpoints_->save(network_, optimizer_, done);
    tell_of(result_.steps, "");
  } catch (const CheckpointFileError& error) {
    if (must) throw CheckpointFileError(unwritten(result_.steps, error.what_without_backtrace()));
    tell_of(result_.steps, error.what_without_backtrace());
  }
}

std::string Training::unwritten(int64_t step, const std::string& problem) const {
  return checkpoint_of(step) + " is not written: " + problem +
         room_on_disk(options_.checkpoint_dir);
}

void Training::say(const std::string& what) const {
  if (DistributedManager::get().rank() != 0) return;
  std::cerr << options_.job + ": " + what + "\n" << std::flush;
}

void Training::dump_parameters() const {
  if (options_.dump_parameters.empty()) return;
  const std::string rank = std::to_string(DistributedManager::get().rank());
  write_parameters(options_.dump_parameters + "-rank-" + rank + ".safetensors", network_);
}

}  // namespace meshrun::jobs
