// Nodes, their sessions and their leases.
//
//   Hello --> HEALTHY --session broken--> SUSPECT --lease over--> LOST
//                ^                           |                     |
//                +----------- Hello ---------+----------Hello------+
//   HEALTHY --lease over (silent session)--> LOST;  Goodbye --> LOST at once
//   HEALTHY --its worker says that it is stopping--> DRAINING, which is as HEALTHY, but nothing new
//   is placed there. It lasts until a Hello does not say so.
//   HEALTHY --its worker has found problems--> UNHEALTHY, which is as DRAINING, until they are gone
//   A node that goes away without a word too often, or could prepare none of several jobs that
//   others could (Quarantine), is drained, in any state, until a person undrains it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/deadline_index.h"
#include "core/certificates/expiry.h"

namespace meshrun::coordinator {

struct Node {
  v1::Node record;
  // 0: not connected.
  uint64_t session_id = 0;
  // Hello's, and whether anything has followed that Hello.
  uint64_t session_number = 0;
  uint32_t attempt = 0;
  bool session_confirmed = false;
  // Jobs with a member here that has not ended, or is leaving: one entry for each.
  std::multiset<std::string> jobs;
  // Hello.fence_after; absent: the host promises nothing.
  std::optional<std::chrono::nanoseconds> fence_after;
  // When its last message came, as far as this term knows.
  SteadyNanos last_heard{0};
  // The same, when its present session began: what was sent later to the one before may be lost.
  SteadyNanos heard_before{0};
  // (job_id, generation) of processes that the node has named in its Hello, although their job is
  // unknown here or has ended, and that it has not reported gone yet.
  std::set<std::pair<std::string, uint64_t>> strays;
  // Its worker is stopping. Outlives the session and the term: the ranks that are lost with the
  // node then were ending anyway.
  bool draining = false;
  // Why the last lease ended, for sentences.
  std::string lost_because;
  // When it went away without a word, the last ones within the window of Quarantine.
  std::deque<WallNanos> absences;
  // What it could not prepare since it last prepared a job: CountRefusal.
  std::set<std::string> refused_jobs;
  // What was told of its certificate's end: NodeCertificates.
  certificates::ToldExpiry told_expiry;

  const std::string& id() const { return record.node_id(); }
  // The preferred one.
  std::string address() const { return record.addresses().empty() ? "" : record.addresses(0); }
  bool lost() const { return record.state() == v1::NODE_STATE_LOST; }
  // It is LOST and no rank computes there: it had none, or its fence time is over.
  bool quiet(SteadyNanos now) const { return lost() && (jobs.empty() || now >= fence()); }
  // If the node stays silent, no rank computes there from this time on. The margin allows for
  // clocks of hosts whose rates differ by less than 1 %.
  SteadyNanos fence() const {
    if (!fence_after.has_value()) return SteadyNanos::max();
    return last_heard + *fence_after + *fence_after / 100 + std::chrono::milliseconds(100);
  }
};

// To the node's worker, about a generation of a job: with its fence and no content yet.
v1::OpenSessionResponse MessageTo(const Node& node, const std::string& job_id, uint64_t generation);

class NodeTable {
 public:
  explicit NodeTable(Context& context) : context_(context) {}

  // The node of a Hello, connected to the session, its lease begun. An older session of the same
  // node is closed with ABORTED. Errors close the session: INVALID_ARGUMENT, ALREADY_EXISTS
  // (another host uses this identity), FAILED_PRECONDITION (lower incarnation), ABORTED (the Hello
  // is older than what the worker has said since).
  absl::StatusOr<Node*> Register(uint64_t session_id, uint64_t incarnation, const v1::Hello& hello);
  // The node of a session, its lease renewed; null when the session has not said Hello.
  Node* Renew(uint64_t session_id);
  // The session ended: the node is SUSPECT from now on.
  void Disconnect(uint64_t session_id);
  // The worker is stopping: DRAINING from now on. Idempotent.
  void Drain(Node& node);
  // Why nothing new is placed there, besides a worker that is stopping; empty: no such reason.
  void SetDrainReason(Node& node, std::string reason);
  // What the worker's checks have found since the last call.
  void SetProblems(Node& node, const v1::HostHealth& health);
  // Records it.
  void OnLogsRemoved(const Node& node, const v1::LogsRemoved& logs);
  // LOST at once, whatever its lease. The session, if any, is closed with `why`.
  void Lose(Node& node, absl::Status why);

  // Call when the node went away without a word: its lease ended, its worker began anew, or its
  // ranks ended unseen. Several consequences of one event count once. A node that does this too
  // often is quarantined. Quarantine never takes more than half of the nodes, because a network
  // that fails must not empty the cluster.
  void CountAbsence(Node& node);
  // The host could not prepare something that others could: a job, or what one user runs. One that
  // refuses too many of these without preparing a job is quarantined.
  void CountRefusal(Node& node, const std::string& what, const std::string& error);
  // The host has prepared a job.
  void ClearRefusals(Node& node);
  // A drain ends, whoever began it.
  void Undrain(Node& node);

  // A node whose lease is over at context.now, made LOST; null when there is none.
  Node* ExpireNext();
  // A LOST node whose fence time has come: nothing computes there; null when there is none.
  Node* NextFenced();
  std::optional<SteadyNanos> NextDeadline() const;
  // The coordinator itself stood still: no node could renew its lease meanwhile.
  void PostponeLeases() { leases_.PostponeTo(context_.now + context_.lease); }

  Node* Find(const std::string& node_id);
  // By id, or by a name that only one node has. NOT_FOUND names what is there.
  absl::StatusOr<Node*> Lookup(const std::string& name);
  // Forgets a lost node that holds no job's ranks.
  void Remove(Node& node, const std::string& why);
  // A node that has been LOST for too long, and on which no rank computes any more; null when there
  // is none. Looks once in a while.
  Node* NextForgotten();
  // To be written at the end of the batch.
  void Changed(const Node& node) { changed_.insert(node.id()); }
  // Call when the node takes jobs from now on, takes none any more, or offers something else: jobs
  // are looked at again, and the node is written.
  void Recomposed(const Node& node);
  // Changes with each such call.
  uint64_t composition() const { return composition_; }
  const std::map<std::string, Node>& all() const { return nodes_; }
  // Not LOST; `healthy_only`: those on which jobs may be placed.
  std::vector<const v1::Node*> Present(bool healthy_only) const;
  // Those on which jobs may be placed, now or as soon as their sessions are back.
  std::vector<const v1::Node*> Taking() const;
  // When the last new node came; long ago where none has.
  SteadyNanos last_joined() const { return last_joined_; }
  // Connected nodes on which nothing is placed any more.
  size_t draining() const;
  // Connected nodes on which nothing is placed until their problems are gone.
  size_t unhealthy() const;
  // Nodes known from before the start of this term that have neither returned nor been given up.
  size_t recovering() const { return recovering_.size(); }
  bool IsRecovering(const Node& node) const { return recovering_.contains(node.id()); }

  void Hold(Node& node, const std::string& job_id, uint32_t slots, uint64_t memory,
            const std::vector<uint32_t>& gpus);
  void Release(Node& node, const std::string& job_id, uint32_t slots, uint64_t memory,
               const std::vector<uint32_t>& gpus);

  void Restore(v1::NodeRecord row);
  void WriteChanged();

 private:
  void DropReplaced(const Node& by);
  // Drains the node until a person undrains it, unless half of the nodes are quarantined: `what` it
  // did, as words after its name.
  void Quarantine(Node& node, const std::string& what);

  Context& context_;
  std::map<std::string, Node> nodes_;
  // Those that are LOST.
  std::set<std::string> lost_;
  std::map<uint64_t, std::string> sessions_;
  DeadlineIndex<std::string> leases_;
  // Fence times of LOST nodes.
  DeadlineIndex<std::string> fences_;
  std::set<std::string> recovering_;
  SteadyNanos last_joined_ = SteadyNanos::min() / 2;
  uint64_t composition_ = 1;
  std::set<std::string> changed_;
  SteadyNanos next_forget_{0};
};

}  // namespace meshrun::coordinator
