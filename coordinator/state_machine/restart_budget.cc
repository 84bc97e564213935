#include "coordinator/state_machine/restart_budget.h"

#include <fmt/format.h>

#include <algorithm>

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
  if (job.former_progress && job.former_progress->has_step()) {
    highest = std::max(highest, job.former_progress->step());
  }
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

std::chrono::nanoseconds Backoff(uint32_t failures) {
  if (failures < 2) return std::chrono::nanoseconds(0);
  return std::min(std::chrono::seconds(1) * (1 << std::min(failures - 2, 6u)), kLongestBackoff);
}

bool RestartBudget::LacksProgress() const {
  const int64_t step = HighestStep(job_);
  const v1::Failure& failure = job_.view.failure();
  return !failure.planned() && !DoNotRequeue(failure) &&
         (step >= 0 || job_.record.progress_step() >= 0) && step <= job_.record.progress_step() &&
         !HasNewCheckpoint(job_) &&
         job_.record.failures_without_progress() + 1 >= kFailuresWithoutProgress;
}

bool RestartBudget::MayRestart() const {
  const v1::Failure& failure = job_.view.failure();
  if (job_.finished() || DoNotRequeue(failure)) return false;
  const uint32_t budget = job_.view.spec().max_restarts();
  // A planned end costs no restart, but a job with max_restarts 0 fails: its user asked that it
  // never runs twice. What was to live on was stopped for the coordinator's own wish.
  if (failure.planned()) return budget > 0 || failure.cause() == v1::FAILURE_CAUSE_MOVED;
  return !LacksProgress() && budget > 0 &&
         (job_.view.restarts_charged() < budget || MadeProgress());
}

bool RestartBudget::MadeProgress() const {
  return HasNewCheckpoint(job_) ||
         (now_ - job_.running_since >= kLongRun && HighestStep(job_) > job_.record.progress_step());
}

std::string RestartBudget::Charge() {
  if (!job_.failed()) return job_.view.reason();
  const std::string& what = job_.view.failure().message();
  if (job_.view.failure().planned()) return "restart at no charge after: " + what;
  if (MadeProgress()) job_.view.set_restarts_charged(0);
  const int64_t step = HighestStep(job_);
  const bool progress = step > job_.record.progress_step() || HasNewCheckpoint(job_);
  job_.record.set_failures_without_progress(progress ? 0
                                                     : job_.record.failures_without_progress() + 1);
  job_.record.set_progress_step(std::max(job_.record.progress_step(), step));
  if (const int64_t newest = NewestCheckpoint(job_); newest >= 0) {
    job_.record.set_checkpoint_at_failure(newest);
  }
  job_.view.set_restarts(job_.view.restarts() + 1);
  job_.view.set_restarts_charged(job_.view.restarts_charged() + 1);
  return fmt::format("restart {} of {} after: {}", job_.view.restarts_charged(),
                     job_.view.spec().max_restarts(), what);
}

}  // namespace meshrun::coordinator
