// The jobs, the indexes that find them, and the set of those that changed in this batch.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/deadline_index.h"

namespace meshrun::coordinator {

// One host of the current generation.
struct Member {
  std::string node_id;
  int first_rank = 0;
  int rank_count = 0;
  uint32_t slots = 0;
  uint64_t memory_bytes = 0;
  std::vector<uint32_t> gpus;
  bool prepared = false;
  uint32_t master_port = 0;
  // Nothing of the generation runs there any more, as far as the coordinator can know.
  bool ended = false;
};

struct Job {
  // What people see. Ranks are in rank order.
  v1::Job view;
  uint64_t submit_sequence = 0;
  std::string request_id;
  // By node rank. Of the current generation, or the last one.
  std::vector<Member> members;
  // Index in members.
  std::unordered_map<std::string, size_t> member_by_node;
  size_t members_alive = 0;
  size_t members_prepared = 0;
  // Table of each generation: log files of earlier ones are found by it.
  std::map<uint64_t, std::shared_ptr<const v1::World>> worlds;
  // SHA-256 of the current one.
  std::string world_digest;

  // Nodes that could not prepare, left out where others can take the job; the second such failure
  // ends the job.
  std::set<std::string> avoided_nodes;
  bool cancel_requested = false;
  std::string cancel_reason;
  // Cancelled without grace.
  bool cancel_now = false;

  const std::string& id() const { return view.job_id(); }
  bool queued() const {
    return view.state() == v1::JOB_STATE_QUEUED || view.state() == v1::JOB_STATE_WAITING;
  }
  // WAITING once it has run.
  v1::JobState state_in_queue() const {
    return view.has_started_at() ? v1::JOB_STATE_WAITING : v1::JOB_STATE_QUEUED;
  }
  // Has a generation whose members are not all gone.
  bool active() const {
    return view.state() == v1::JOB_STATE_RENDEZVOUS || view.state() == v1::JOB_STATE_RUNNING ||
           view.state() == v1::JOB_STATE_QUIESCING;
  }
  bool ended() const {
    return view.state() == v1::JOB_STATE_SUCCEEDED || view.state() == v1::JOB_STATE_FAILED ||
           view.state() == v1::JOB_STATE_CANCELLED;
  }
  // Whether the current generation has failed.
  bool failed() const {
    return view.has_failure() && view.failure().generation() == view.generation();
  }
  std::chrono::nanoseconds kill_grace() const;
  // Grace of a stop that is sent now: zero once the job was cancelled without grace.
  std::chrono::nanoseconds stop_grace() const {
    return cancel_now ? std::chrono::nanoseconds(0) : kill_grace();
  }
  Member* FindMember(const std::string& node_id);
};

class JobTable {
 public:
  explicit JobTable(Context& context) : context_(context) {}

  // A new job, QUEUED. Its id is derived from the event's random number.
  Job& Add(v1::JobSpec spec, std::string request_id);
  Job* Find(const std::string& job_id);
  Job* FindRequest(const std::string& request_id);
  // By whole id, or by a prefix that only one job has. NOT_FOUND says how many jobs match.
  absl::StatusOr<Job*> Lookup(const std::string& id_or_prefix);

  // Changes state and reason; starts the deadline that the state has, if any.
  void SetState(Job& job, v1::JobState state, std::string reason);
  // The job's record, watchers and revision; ranks are in Member records of their own.
  void Changed(Job& job) { changed_.insert(job.id()); }
  void Changed(Job& job, const Member& member);
  // Seen by watchers, not durable.
  void Progressed(Job& job) { progressed_.insert(job.id()); }
  void NewGeneration(Job& job, uint64_t previous_generation);

  // QUEUED and WAITING, in the order in which they are placed.
  std::vector<Job*> Queue();
  // Newest first, below `before` (0: from the newest).
  std::vector<const Job*> Newest(uint64_t before, size_t limit, bool active_only) const;
  size_t size() const { return jobs_.size(); }
  size_t active_count() const { return jobs_.size() - ended_.size(); }

  Job* PopDue();
  std::optional<SteadyNanos> NextDeadline() const { return deadlines_.Next(); }

  void AddWatcher(const Job& job, uint64_t call_id) { watchers_[job.id()].insert(call_id); }
  void RemoveWatcher(uint64_t call_id);

  // Rows that cannot be read are Context::Damaged.
  void Restore(const std::vector<v1::StateRow>& rows);
  // Rows of what changed, and one item to each watcher of it.
  void WriteChanged();

  const std::map<std::string, Job>& all() const { return jobs_; }

 private:
  static constexpr size_t kMaxEnded = 1000;

  void Index(const Job& job);
  void DropOldest();
  void WriteJob(Job& job);
  void Notify(const Job& job);

  Context& context_;
  std::map<std::string, Job> jobs_;
  std::map<uint64_t, std::string> by_sequence_;
  std::map<std::string, std::string> by_request_;
  // Highest priority first, then in order of submission.
  std::set<std::pair<int64_t, uint64_t>> queue_;
  // submit_sequence of jobs that have ended.
  std::set<uint64_t> ended_;
  uint64_t next_sequence_ = 1;
  DeadlineIndex<std::string> deadlines_;
  std::map<std::string, std::set<uint64_t>> watchers_;
  std::set<std::string> changed_;
  std::set<std::string> progressed_;
  std::set<std::pair<std::string, size_t>> changed_members_;
};

std::string_view StateName(v1::JobState state);

}  // namespace meshrun::coordinator
