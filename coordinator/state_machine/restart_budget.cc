// Whether a failed generation is followed by another one, and what that costs.
#include <fmt/format.h>

#include <algorithm>

#include "coordinator/state_machine/generations.h"
#include "core/exit_codes.h"

namespace meshrun::coordinator {
namespace {

// So many failed generations without a step beyond the highest one before end the job.
constexpr uint32_t kFailuresWithoutProgress = 3;
// A generation that ran so long and went beyond the highest step before has made progress, also
// without a checkpoint.
constexpr std::chrono::minutes kLongRun(10);

int64_t NewestCheckpoint(const Job& job) {
  int64_t newest = -1;
  for (const v1::CheckpointCommit& commit : job.view.checkpoints()) {
    newest = std::max(newest, commit.step());
  }
  return newest;
}

bool HasNewCheckpoint(const Job& job) {
  return NewestCheckpoint(job) > job.checkpoint_at_failure();
}

int64_t HighestStep(const Job& job) {
  int64_t highest = job.step_beyond();
  if (job.view.progress().has_step()) highest = std::max(highest, job.view.progress().step());
  for (const v1::RankStatus& rank : job.view.ranks()) {
    if (rank.progress().has_step()) highest = std::max(highest, rank.progress().step());
  }
  return highest;
}

// The rank says that another run would end in the same way.
bool DoNotRequeue(const v1::Failure& failure) {
  return failure.cause() == v1::FAILURE_CAUSE_RANK_EXITED &&
         failure.exit().exit_code() == kExitDoNotRequeue;
}

}  // namespace

// This failure is one too many without a step or a checkpoint beyond those before. Jobs that report
// no steps are not judged.
bool Generations::LacksProgress(const Job& job) const {
  const int64_t step = HighestStep(job);
  const v1::Failure& failure = job.view.failure();
  return !failure.planned() && !DoNotRequeue(failure) &&
         (step >= 0 || job.record.progress_step() >= 0) && step <= job.record.progress_step() &&
         !HasNewCheckpoint(job) &&
         job.record.failures_without_progress() + 1 >= kFailuresWithoutProgress;
}

bool Generations::MayRestart(const Job& job) const {
  const v1::Failure& failure = job.view.failure();
  if (job.finished() || DoNotRequeue(failure)) return false;
  const uint32_t budget = job.view.spec().max_restarts();
  // A planned end costs no restart, but a job with max_restarts 0 fails: its user asked that it
  // never runs twice. What was to live on was stopped for the coordinator's own wish.
  if (failure.planned()) return budget > 0 || failure.cause() == v1::FAILURE_CAUSE_MOVED;
  return !LacksProgress(job) && budget > 0 &&
         (job.view.restarts_charged() < budget || MadeProgress(job));
}

// Since the last failure: enough for a new budget.
bool Generations::MadeProgress(const Job& job) const {
  return HasNewCheckpoint(job) || (context_.now - job.running_since >= kLongRun &&
                                   HighestStep(job) > job.record.progress_step());
}

std::string Generations::Charge(Job& job) {
  if (!job.failed()) return job.view.reason();
  const std::string& what = job.view.failure().message();
  if (job.view.failure().planned()) return "restart at no charge after: " + what;
  if (MadeProgress(job)) job.view.set_restarts_charged(0);
  const int64_t step = HighestStep(job);
  const bool progress = step > job.record.progress_step() || HasNewCheckpoint(job);
  job.record.set_failures_without_progress(progress ? 0
                                                    : job.record.failures_without_progress() + 1);
  job.record.set_progress_step(std::max(job.record.progress_step(), step));
  if (const int64_t newest = NewestCheckpoint(job); newest >= 0) {
    job.record.set_checkpoint_at_failure(newest);
  }
  job.view.set_restarts(job.view.restarts() + 1);
  job.view.set_restarts_charged(job.view.restarts_charged() + 1);
  return fmt::format("restart {} of {} after: {}", job.view.restarts_charged(),
                     job.view.spec().max_restarts(), what);
}

}  // namespace meshrun::coordinator
