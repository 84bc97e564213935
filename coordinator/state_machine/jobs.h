// The jobs, the indexes that find them, and the set of those that changed in this batch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/deadline_index.h"
#include "coordinator/state_machine/job_phase.h"
#include "coordinator/state_machine/kept_jobs.h"
#include "coordinator/state_machine/placement.h"
#include "coordinator/state_machine/queue_index.h"
#include "coordinator/state_machine/quotas.h"
#include "coordinator/state_machine/row_log.h"
#include "coordinator/state_machine/run_clock.h"
#include "coordinator/state_machine/turns.h"
#include "coordinator/state_machine/watchers.h"
#include "core/env_entries.h"

namespace meshrun::coordinator {

// How long the workers have to answer a Prepare.
inline constexpr std::chrono::seconds kPrepareTimeout(30);
// Between two starts of a job that fails without progress.
inline constexpr std::chrono::seconds kLongestBackoff(60);
// Time after the grace for SIGKILL to take effect and for the worker to report it.
inline constexpr std::chrono::seconds kStopSlack(30);

// One host of the current generation.
struct Member {
  std::string node_id;
  int first_rank = 0;
  int rank_count = 0;
  uint32_t slots = 0;
  uint64_t memory_bytes = 0;
  std::vector<uint32_t> gpus;
  bool prepared = false;
  bool started = false;
  uint32_t master_port = 0;
  // Nothing of the generation runs there any more, as far as the coordinator can know.
  bool ended = false;
  // It came with this generation, whose other ranks live on from earlier ones, and which has not
  // started: no rank of the job runs there yet.
  bool newcomer = false;

  bool Has(int rank) const { return rank >= first_rank && rank < first_rank + rank_count; }
};

// One host of an earlier generation whose processes may not be gone: the host is lost, or they do
// not die. What it holds stays held until the host says that they have ended.
struct LeavingMember {
  uint64_t generation = 0;
  size_t node_rank = 0;
  Member member;
  // They were sent SIGKILL long ago: they compute nothing, and hold what they hold.
  bool stuck = false;
  // All its ranks said how they ended; what they started may be left.
  bool exited = false;
  // They are told to end by then; absent: they were told nothing.
  std::optional<SteadyNanos> stop_by;
};

struct Job {
  // What people see: without the values of the environment. Ranks are in rank order.
  v1::Job view;
  // All else that is durable, as it is written. Its `job` is empty here, since that is the view.
  // So are its times of the wall clock: not_before, running_since and queued_since below.
  v1::JobRecord record;
  // Members of the current generation, or of the last one, by node rank.
  std::vector<Member> members;
  // Index in members.
  std::unordered_map<std::string, size_t> member_by_node;
  size_t members_alive = 0;
  size_t members_prepared = 0;
  std::vector<LeavingMember> leaving;
  // Table of each generation: log files of earlier ones are found by it.
  std::map<uint64_t, std::shared_ptr<const v1::World>> worlds;
  // SHA-256 of the current one.
  std::string world_digest;

  // It is not started again before: failures without progress follow each other ever more slowly.
  SteadyNanos not_before{0};
  // When the generation started, as far as this term knows.
  SteadyNanos running_since{0};
  // Since when the job is in the queue and not held.
  std::optional<SteadyNanos> queued_since;
  // When the last of its paused ranks went on, as far as this term knows.
  SteadyNanos resumed_at{0};
  // When paused ranks were told to go on, as far as this term knows.
  std::map<int, SteadyNanos> told_to_go_on;
  // The generation of which an event says why it does not grow yet, as far as this term knows.
  uint64_t growth_wait_said = 0;
  // Ranks that stand still.
  std::set<int> quiesced;
  // Ranks that have reported a step in the current generation, as far as this term knows.
  std::set<int> stepped;
  Curve curve;
  // Reported in an earlier term. Ranks that run have gone on since: it is shown again only where
  // they end without a report in this one.
  std::optional<v1::Progress> former_progress;
  // How many members of the current generation have started its ranks.
  size_t members_started = 0;
  JobTally tally;
  // What it counts as in the quotas, and in KeptJobs.
  Quotas::Share counted;
  size_t kept_bytes = 0;

  Job() { record.set_progress_step(-1); }

  const std::string& id() const { return view.job_id(); }
  // Changed by JobTable::SetPhase.
  JobPhase phase() const { return PhaseOf(view.state(), record); }
  bool queued() const {
    return view.state() == v1::JOB_STATE_QUEUED || view.state() == v1::JOB_STATE_WAITING;
  }
  // kWaiting once it has run.
  JobPhase phase_in_queue() const {
    return view.has_started_at() ? JobPhase::kWaiting : JobPhase::kQueued;
  }
  // QUIESCING, and its ranks are to be the next generation.
  bool survivors_wait() const {
    return phase() == JobPhase::kSurvivorsWait || phase() == JobPhase::kAskedToQuiesce;
  }
  // The ranks of this generation were asked to stand still, and no Stop was sent since.
  bool asked_to_quiesce() const {
    return phase() == JobPhase::kAskedToQuiesce || phase() == JobPhase::kFinishing;
  }
  // QUIESCING, and its ranks are told to end.
  bool stopping() const { return phase() == JobPhase::kStopping; }
  // Has a generation whose members are not all gone.
  bool active() const {
    return view.state() == v1::JOB_STATE_RENDEZVOUS || view.state() == v1::JOB_STATE_RUNNING ||
           view.state() == v1::JOB_STATE_QUIESCING;
  }
  bool ended() const { return HasEnded(view.state()); }
  void ShowFormerProgress() {
    if (former_progress && !view.has_progress()) *view.mutable_progress() = *former_progress;
    former_progress.reset();
  }
  // Whether the current generation has failed.
  bool failed() const {
    return view.has_failure() && view.failure().generation() == view.generation();
  }
  // If several ranks ended badly, the lines of the first one tell what happened.
  bool HidesLastLines(int rank) const { return failed() && rank != view.failure().rank(); }
  // Whether all ranks of the current generation have done their part, as one of them has said: no
  // other generation follows, however its ranks and hosts end.
  bool finished() const {
    return record.finished_generation() != 0 && record.finished_generation() == view.generation();
  }
  // Its user allows that it is started more than once.
  bool MayRunAgain() const { return view.spec().max_restarts() > 0; }
  QueuePlace place() const {
    return {-int64_t{view.spec().priority()}, record.turn_begin(), record.submit_sequence()};
  }
  // Absent: it has not been in the queue, or not with this priority.
  std::optional<Turn> turn() const {
    if (record.turn_end() == 0) return std::nullopt;
    return Turn{record.turn_begin(), record.turn_end()};
  }
  std::chrono::nanoseconds kill_grace() const;
  // Grace of a stop that is sent now: zero once the job was cancelled without grace.
  std::chrono::nanoseconds stop_grace() const {
    return record.cancel_now() ? std::chrono::nanoseconds(0) : kill_grace();
  }
  // -1: no rank has reported a step beyond progress_step.
  int64_t step_beyond() const { return record.has_step_beyond() ? record.step_beyond() : -1; }
  // The newest checkpoint, of any name, at the last failure; -1: there was none.
  int64_t checkpoint_at_failure() const {
    return record.has_checkpoint_at_failure() ? record.checkpoint_at_failure() : -1;
  }
  // Zero: not learned yet.
  std::chrono::nanoseconds longest_step() const;
  Member* FindMember(const std::string& node_id);
  // The same while the job is active and the member has not ended; else null.
  Member* FindLiveMember(const std::string& node_id);
  // Whether the rank of the current generation is that node's.
  bool IsOn(int rank, const std::string& node_id) const;
  // Whether ranks of the current generation, or of those from which it goes on, have run there.
  bool HasRunOn(const std::string& node_id) const;
  // A node that has failed the job twice: others are preferred to it. One that could not prepare it
  // (refusals.h) is avoided too.
  bool Avoids(const std::string& node_id) const;
  void Avoid(const std::string& node_id);
  bool avoids_nodes() const {
    return !record.avoided_nodes().empty() || !record.refusals().empty();
  }
  // What the node said when it could not prepare the job; null: it has not refused.
  const v1::PrepareRefusal* RefusalOf(const std::string& node_id) const;
  void DropRefusal(const std::string& node_id);
  // To place this job on `nodes`; those of its members keep their places.
  PlacementRequest RequestOn(std::vector<const v1::Node*> nodes) const;
  // Ranks of other generations on hosts that are lost do no harm: the job says so, or commits its
  // checkpoints through the coordinator.
  bool writes_are_fenced() const {
    return view.spec().replace_at_once() || view.checkpoints_size() > 0;
  }
};

// The values of the environment, which stay out of what people see.
EnvEntries TakeEnvironment(v1::JobSpec& spec);
// Key of a member's row in the durable state.
std::string MemberKey(const Job& job, uint64_t generation, size_t node_rank);

// Whether the rank's process was started for this generation.
inline bool IsFresh(const v1::RankAssignment& rank, uint64_t generation) {
  return rank.process_generation() == 0 || rank.process_generation() == generation;
}

class JobTable {
 public:
  explicit JobTable(Context& context) : context_(context) {}

  // A new job, QUEUED. Its id is derived from the event's random number. Of an array: its first
  // job, after which the others have come.
  Job& Add(v1::JobSpec spec, std::string request_id);
  // Jobs of the array, by their places in it; none: there is no such array.
  std::vector<Job*> OfArray(const std::string& array_id);
  // Those that a change is asked for: all of an array by its whole id, else one, as Lookup.
  absl::StatusOr<std::vector<Job*>> Named(const std::string& id);
  Job* Find(const std::string& job_id);
  Job* FindRequest(const std::string& request_id);
  // By whole id, or by a prefix that only one job has. NOT_FOUND says how many jobs match.
  absl::StatusOr<Job*> Lookup(const std::string& id_or_prefix);

  // Changes phase and reason; starts the deadline that the state has, if any. A change that
  // kPhaseChanges lacks is a fault of the state machine: it is logged, and made.
  void SetPhase(Job& job, JobPhase phase, std::string reason);
  void SetReason(Job& job, std::string reason) { SetPhase(job, job.phase(), std::move(reason)); }
  // The first change that kPhaseChanges lacks; empty: there was none. For tests and invariants.
  const std::string& wrong_change() const { return wrong_change_; }
  // Instead of the one that the state has.
  void SetDeadline(const Job& job, SteadyNanos at) { deadlines_.Set(job.id(), at); }
  // The one of a stop that is sent now.
  void SetStopDeadline(const Job& job);
  // Grace of a stop that is sent now, as the policy allows it: a job of before it may have asked
  // for more.
  std::chrono::nanoseconds StopGrace(const Job& job) const;
  void ClearDeadline(const Job& job) { deadlines_.Clear(job.id()); }
  // Call when the coordinator stood still or has just started: answers that came in time may not
  // have been read yet. The lease and one more second let silent nodes be lost before these
  // deadlines pass, because no queued job is placed while a node may return.
  void PostponeDeadlines() {
    deadlines_.PostponeTo(context_.now + context_.lease + std::chrono::seconds(1));
  }
  // The job's record, watchers and revision; ranks are in Member records of their own.
  void Changed(Job& job) { changed_.insert(job.id()); }
  void Changed(Job& job, const Member& member);
  // Seen by watchers, not durable. `report`: what the rank whose progress is the job's has just
  // said; null: nothing.
  void Progressed(Job& job, const v1::Progress* report);
  void NewGeneration(Job& job, uint64_t previous_generation);
  // The member of the current generation is leaving from now on.
  void Leave(Job& job, const Member& member, bool stuck);
  // The leaving member was sent SIGKILL long ago.
  void Stuck(Job& job, size_t index);
  // The leaving member has ended: drops it.
  void Left(Job& job, size_t index);

  const std::set<std::string>& elastic() const { return elastic_; }
  bool queue_empty() const { return queue_.size() == 0; }
  // QUEUED and WAITING jobs that are not held.
  QueueIndex& queue() { return queue_; }
  const QueueIndex& queue() const { return queue_; }
  // Queued jobs that the node could not prepare may be placed there again.
  void ForgiveNode(const std::string& node_id);
  void SetHeld(Job& job, bool held);
  // It does not wait for a job any more that it waited for.
  void WaitsForLess(Job& job);
  // Jobs that wait for the end of this one, and those that any waits for.
  std::vector<std::string> WaitingFor(const std::string& job_id) const;
  std::vector<std::string> Awaited() const;
  void NobodyWaitsFor(const std::string& job_id) { waiting_for_.erase(job_id); }
  // Awaited jobs that have ended since the last call.
  std::vector<std::string> TakeEnded() { return std::exchange(awaited_ended_, {}); }
  void SetPriority(Job& job, int32_t priority);
  RunClock& run_clock() { return run_clock_; }
  const Quotas& quotas() const { return quotas_; }
  using UsageLog = RowLog<v1::UsageRecord, &v1::UsageRecord::finished_at>;
  const UsageLog& usage() const { return usage_; }
  // RESOURCE_EXHAUSTED: the job, or the array, of the caller's would be too much to keep.
  absl::Status CheckRoom(const v1::JobSpec& spec) const;
  // Whose quotas the job counts in.
  std::vector<PolicyScope> ScopesOf(const Job& job) const;
  // The policy has changed.
  void OnPolicy();
  // Deadline of the job's state, if it has one.
  std::optional<SteadyNanos> Deadline(const Job& job) const { return deadlines_.Of(job.id()); }
  // Ranks of a running job were sent SIGSTOP, or SIGCONT: `ranks`, or all where it is empty.
  void SetPaused(Job& job, const std::vector<int>& ranks, bool paused);
  // A stop that is under way has only so much longer.
  void ShortenStop(Job& job, std::chrono::nanoseconds grace);
  // As clients see it: the reason of a queued job is derived here.
  v1::Job View(const Job& job, bool with_ranks) const;
  // So many ranks as people see them, from `first` on, where there are so many.
  void AddRanks(const Job& job, int first, int count, v1::Job* out) const;
  std::string ReasonOf(const Job& job) const;
  std::function<std::string(const Job&)> reason_of;
  // A place in a list of jobs: behind the job of this number, of this group.
  struct ListPlace {
    int group = 0;
    // 0: from the newest of the group.
    uint64_t before = 0;
  };
  // The group of a job in a list with running_first: 0 has ranks on nodes, 1 is in the queue, 2 has
  // ended. Without it: 0.
  static int ListGroup(const Job& job, const v1::ListJobsRequest& request);
  // Those that the request asks for, `limit` at most, behind `place`.
  std::vector<const Job*> List(const v1::ListJobsRequest& request, ListPlace place,
                               size_t limit) const;
  size_t size() const { return jobs_.size(); }
  size_t active_count() const { return jobs_.size() - ended_.size(); }

  Job* PopDue();
  std::optional<SteadyNanos> NextDeadline() const { return deadlines_.Next(); }

  void AddWatcher(const Job& job, uint64_t call_id, const v1::WatchJobRequest& request);
  void RemoveWatcher(uint64_t call_id) { watchers_.Remove(call_id); }
  std::optional<SteadyNanos> NextTelling() const { return watchers_.NextDeadline(); }

  // Takes its rows in the order of the store; one that cannot be read is Context::Damaged.
  void Restore(const v1::StateRow& row);
  // All have come.
  void OnRestored();
  // Rows of what changed, and one item to each watcher of it.
  void WriteChanged();
  // What the job's row holds now, without the job as people see it.
  v1::JobRecord RecordWithoutView(const Job& job) const;

  const std::map<std::string, Job>& all() const { return jobs_; }

 private:
  // Tables of a job's earlier generations that are kept for its logs: so many, and of so many
  // ranks.
  static constexpr size_t kMaxWorlds = 100;
  static constexpr int kMaxWorldRanks = 200'000;

  // One job of the id; `spec` as it is asked for.
  Job& AddOne(const std::string& id, const v1::JobSpec& spec);
  void Index(Job& job);
  void Enter(Job& job, JobPhase phase, std::string reason);
  void DropOldWorlds(Job& job);
  // Into the queue, unless it is held. A place that it has there it gives up.
  void Enqueue(Job& job);
  void LeaveQueue(Job& job, bool starts);
  // Begin of the first turn of the priority that could be taken now; absent: none waits.
  std::optional<uint64_t> EarliestTurn(int32_t priority) const;
  // Keeps waiting_for_ right for a job that waits for others, or has ended.
  void IndexWaits(const Job& job);
  // What it counts as has changed.
  void Count(Job& job);
  // Once when it comes, and once when it has ended.
  void CountBytes(Job& job);
  // It gets another turn when it is in the queue again.
  void ForgetTurn(Job& job);
  // Ended jobs that are too many or too old: those that ended first.
  void ForgetEnded();
  google::protobuf::Timestamp WallOf(SteadyNanos at) const;
  void TakeRecord(Job& job, v1::JobRecord record);
  void RestoreMember(const v1::StateRow& row);
  void WriteJob(Job& job);
  void AddLeaving(const LeavingMember& leaving, v1::MemberRecord& record) const;
  void WriteMember(const Job& job, size_t index);
  void WriteLeaving(const Job& job, const LeavingMember& leaving);
  void Tell(const Job& job);

  Context& context_;
  std::map<std::string, Job> jobs_;
  std::map<uint64_t, Job*> by_sequence_;
  // The keys are the texts in the jobs' records.
  std::unordered_map<std::string_view, Job*> by_request_;
  // Jobs that run and may run on more nodes than their least.
  std::set<std::string> elastic_;
  QueueIndex queue_;
  Turns turns_;
  Quotas quotas_;
  KeptJobs kept_;
  UsageLog usage_{v1::STATE_TABLE_USAGE};
  RunClock run_clock_{context_};
  // When they ended, and their submit_sequence.
  std::set<std::pair<std::chrono::nanoseconds, uint64_t>> ended_;
  uint64_t next_sequence_ = 1;
  DeadlineIndex<std::string> deadlines_;
  Watchers watchers_{context_};
  // By the job that is waited for; of jobs that have not ended.
  std::map<std::string, std::set<std::string>> waiting_for_;
  std::vector<std::string> awaited_ended_;
  std::set<std::string> changed_;
  std::set<std::string> progressed_;
  std::set<std::pair<std::string, size_t>> changed_members_;
  std::string wrong_change_;
};

std::string_view StateName(v1::JobState state);

}  // namespace meshrun::coordinator
