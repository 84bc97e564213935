// What is counted for metrics, from the start of the coordinator on. Nothing here decides about
// anything. Its size does not grow with jobs, nor with users.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/metrics/buckets.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::coordinator {

// What Tallies keeps of a job.
struct JobTally {
  // Whose row it is counted in.
  std::string row;
  SteadyNanos prepared_since{0};
  // Ranks that hold resources.
  uint32_t held_ranks = 0;
  // The highest step of all generations; what is not beyond it is repeated. Its part that outlives
  // this coordinator is JobRecord's reached_step.
  int64_t highest_step = -1;
  // The highest step of the last generation that has reported one, and when it came, by the job's
  // RunClock.
  uint64_t step_generation = 0;
  int64_t generation_step = -1;
  std::chrono::nanoseconds step_at{0};
  // A generation that was suspected to hang and has made no new step since; 0: none.
  uint64_t hung_generation = 0;
};

class Tallies {
 public:
  // Users with a row of their own; the jobs of further ones are counted as kOthers.
  static constexpr size_t kMostUsers = 50;
  static constexpr char kOthers[] = "other";
  // Kinds of events with a count of their own.
  static constexpr size_t kMostKinds = 128;
  static constexpr size_t kStates = 16;
  using States = std::array<uint32_t, kStates>;

  // The job of this user changes its state.
  void OnState(JobTally& job, const std::string& user, v1::JobState from, v1::JobState to,
               uint32_t ranks, SteadyNanos now);
  // The job got its first placement after so long in the queue.
  void OnPlaced(SteadyNanos waited);
  // A generation begins: "first", a cause of failure ("node_lost"), or "planned".
  void OnGeneration(std::string_view reason);
  // All its ranks run so long after the generation was committed.
  void OnStarted(SteadyNanos took);
  // A report with another step has come from a rank of the running generation. `fell`: below one
  // that the same rank has reported in this generation. `run_time`: of the job until now, by its
  // RunClock, which stands still while ranks are paused.
  void OnStep(JobTally& job, uint64_t generation, uint32_t ranks, int64_t step, bool fell,
              std::chrono::nanoseconds run_time);
  // The generation is suspected to hang: its time since the last step is no training.
  void OnHang(JobTally& job, uint64_t generation) { job.hung_generation = generation; }
  // The job has come to this step, and nobody knows how.
  void OnReached(JobTally& job, int64_t step);
  void OnEvent(std::string_view kind);
  // Up to now.
  double HeldRankSeconds(SteadyNanos now) const;

  // Jobs that have not ended, by row and state.
  const std::map<std::string, States>& jobs() const { return jobs_; }
  const std::map<v1::JobState, uint64_t>& ended() const { return ended_; }
  const std::map<std::string, uint64_t, std::less<>>& generations() const { return generations_; }
  // Generations that were committed.
  uint64_t committed() const { return committed_; }
  const std::map<std::string, uint64_t, std::less<>>& events() const { return events_; }
  uint32_t held_ranks() const { return held_ranks_; }
  double stepping_rank_seconds() const { return stepping_rank_seconds_; }
  const metrics::Buckets& queue_wait() const { return queue_wait_; }
  const metrics::Buckets& prepare() const { return prepare_; }
  const metrics::Buckets& start() const { return start_; }

 private:
  void Move(JobTally& job, const std::string& user, v1::JobState from, v1::JobState to);
  void Hold(JobTally& job, uint32_t ranks, SteadyNanos now);

  std::map<std::string, States> jobs_;
  std::map<v1::JobState, uint64_t> ended_;
  // Prometheus sees no rise in a series that begins above 0: what alerts watch is there from the
  // start.
  std::map<std::string, uint64_t, std::less<>> generations_{{"first", 0}};
  uint64_t committed_ = 0;
  std::map<std::string, uint64_t, std::less<>> events_{
      {"HangSuspected", 0}, {"JobFailed", 0}, {"NodeLost", 0}, {"StragglerFound", 0}};
  uint32_t held_ranks_ = 0;
  SteadyNanos held_since_{0};
  double held_rank_seconds_ = 0;
  double stepping_rank_seconds_ = 0;
  metrics::Buckets queue_wait_{metrics::kLongSeconds};
  metrics::Buckets prepare_{metrics::kShortSeconds};
  metrics::Buckets start_{metrics::kShortSeconds};
};

// What a scrape is told of the state machine: a copy that is cheap to make. Nodes are counted one
// by one, jobs and ranks are not.
struct Measures {
  Tallies tallies;
  // By name of their state, in lower case.
  std::map<std::string, uint32_t> nodes;
  // On which a person, or the quarantine, lets nothing new be placed.
  uint32_t nodes_drained = 0;
  uint64_t slots = 0;
  uint64_t slots_used = 0;
  uint64_t gpus = 0;
  uint64_t gpus_used = 0;
  // In the queue and not held.
  size_t queued_jobs = 0;
  size_t known_jobs = 0;
  double held_rank_seconds = 0;
};

}  // namespace meshrun::coordinator
