#include "coordinator/state_machine/tallies.h"

#include <algorithm>
#include <chrono>

#include "coordinator/state_machine/job_phase.h"

namespace meshrun::coordinator {
namespace {

double Seconds(SteadyNanos time) { return std::chrono::duration<double>(time).count(); }

bool IsCounted(v1::JobState state) {
  return state != v1::JOB_STATE_UNSPECIFIED && !HasEnded(state);
}

bool IsQueued(v1::JobState state) {
  return state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_WAITING;
}

// Counts what there may be only so many names of.
void CountNamed(std::map<std::string, uint64_t, std::less<>>& counts, std::string_view name,
                size_t most) {
  auto found = counts.find(name);
  if (found == counts.end()) {
    found = counts.try_emplace(std::string(counts.size() < most ? name : Tallies::kOthers)).first;
  }
  ++found->second;
}

}  // namespace

void Tallies::OnState(JobTally& job, const std::string& user, v1::JobState from, v1::JobState to,
                      uint32_t ranks, SteadyNanos now) {
  Move(job, user, from, to);
  if (to == v1::JOB_STATE_RENDEZVOUS) job.prepared_since = now;
  if (from == v1::JOB_STATE_RENDEZVOUS && to == v1::JOB_STATE_RUNNING) {
    prepare_.Observe(Seconds(now - job.prepared_since));
    ++committed_;
  }
  if (HasEnded(to)) ++ended_[to];
  const bool holds = IsCounted(to) && !IsQueued(to) && to != v1::JOB_STATE_SUSPENDED;
  Hold(job, holds ? ranks : 0, now);
}

void Tallies::Move(JobTally& job, const std::string& user, v1::JobState from, v1::JobState to) {
  if (IsCounted(from) && !job.row.empty()) {
    const auto row = jobs_.find(job.row);
    --row->second[from];
    const bool is_empty =
        std::all_of(row->second.begin(), row->second.end(), [](uint32_t n) { return n == 0; });
    if (is_empty && !IsCounted(to)) jobs_.erase(row);
  }
  if (!IsCounted(to)) {
    job.row.clear();
    return;
  }
  if (job.row.empty()) {
    job.row = jobs_.contains(user) || jobs_.size() < kMostUsers ? user : kOthers;
  }
  ++jobs_[job.row][to];
}

void Tallies::Hold(JobTally& job, uint32_t ranks, SteadyNanos now) {
  if (ranks == job.held_ranks) return;
  held_rank_seconds_ = HeldRankSeconds(now);
  held_since_ = now;
  held_ranks_ += ranks - job.held_ranks;
  job.held_ranks = ranks;
}

double Tallies::HeldRankSeconds(SteadyNanos now) const {
  return held_rank_seconds_ + held_ranks_ * std::max(Seconds(now - held_since_), 0.0);
}

void Tallies::OnGeneration(std::string_view reason) {
  CountNamed(generations_, reason, kMostKinds);
}

void Tallies::OnPlaced(SteadyNanos waited) { queue_wait_.Observe(std::max(Seconds(waited), 0.0)); }

void Tallies::OnStarted(SteadyNanos took) { start_.Observe(Seconds(took)); }

void Tallies::OnStep(JobTally& job, uint64_t generation, uint32_t ranks, int64_t step, bool fell,
                     std::chrono::nanoseconds run_time) {
  const bool goes_on = job.step_generation == generation;
  // A rank that counts anew in each epoch has lost nothing.
  if (goes_on && fell) job.highest_step = job.generation_step = step - 1;
  // Hosts report the same step one after the other.
  if (goes_on && step <= job.generation_step) return;
  const bool is_new = step > job.highest_step;
  if (is_new) {
    if (goes_on && job.hung_generation != generation) {
      stepping_rank_seconds_ += ranks * Seconds(run_time - job.step_at);
    }
    job.highest_step = step;
  }
  // The first report that this coordinator hears may repeat the step at which the ranks hang.
  if (goes_on || is_new) job.hung_generation = 0;
  job.step_at = run_time;
  job.generation_step = step;
  job.step_generation = generation;
}

void Tallies::OnReached(JobTally& job, int64_t step) {
  job.highest_step = std::max(job.highest_step, step);
}

void Tallies::OnEvent(std::string_view kind) { CountNamed(events_, kind, kMostKinds); }

}  // namespace meshrun::coordinator
