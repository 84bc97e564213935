// The coordinator without its surroundings: every input is an event that carries its time, every
// output an action. No threads, sockets, clocks or files. The same events give the same actions.
//
//   StateMachine machine;
//   machine.Step(restore_event);             // always first
//   Actions actions = machine.Step(event);   // ... commit actions.rows, then carry out
//   actions.list
//
// Events come in batches; the last of a batch says so (StateEvent.end_of_batch). Jobs are placed
// and rows handed out only there, so that a thousand messages cost one transaction.
//
// Split by subject:
//   nodes.*, callers.*, privacy.*       sessions, leases, what a caller may name and see
//   jobs.*, job_records.cc, job_places.cc, curve.*
//                                       records of jobs
//   job_phase.*                         where a job stands, and what may follow
//   session_messages.cc                 what workers say
//   job_commands.cc                     submit, cancel
//   watchers.*, queries.cc              what clients watch and ask
//   event_causes.*                      which event led to which
//   queue.*, queue_index.*, queue_commands.cc, reservation.*, run_clock.*, turns.*
//                                       which job starts when
//   policy.*, quotas.*                  what users may have
//   held_time.*, usage.*                what jobs have used
//   audit.*, refusal_limit.*            who asked for what
//   tallies.*                           what is counted for metrics
//   roll_call.*, reconcile.*            what runs, where the state is a copy
//   row_log.h                           records that are only added
//   dependencies.*                      jobs that wait for others
//   placement.*                         on which nodes
//   generations.*, stops.cc             start, stop, restart (generations.h lists its other files)
//   rendezvous_store.*, store_*.cc, barriers.cc, checkpoint_commits.*
//                                       what ranks tell each other
//   departures.*                        hosts whose processes may not be gone
//   growth.*                            which running job gets more nodes
//   peer_news.*                         which losses all ranks are told of
//   blocked_ranks.*, hangs.*, stragglers.*, inquiries.*
//                                       which ranks wait, stand still or are slow
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "coordinator/state_machine/actions.h"
#include "coordinator/state_machine/audit.h"
#include "coordinator/state_machine/checkpoint_commits.h"
#include "coordinator/state_machine/context.h"
#include "coordinator/state_machine/continuation.h"
#include "coordinator/state_machine/departures.h"
#include "coordinator/state_machine/dependencies.h"
#include "coordinator/state_machine/generations.h"
#include "coordinator/state_machine/growth.h"
#include "coordinator/state_machine/hangs.h"
#include "coordinator/state_machine/inquiries.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/node_certificates.h"
#include "coordinator/state_machine/nodes.h"
#include "coordinator/state_machine/queue.h"
#include "coordinator/state_machine/rendezvous_store.h"
#include "coordinator/state_machine/roll_call.h"
#include "coordinator/state_machine/stragglers.h"

namespace meshrun::coordinator {

class StateMachine {
 public:
  Actions Step(const v1::StateEvent& event);

  // The next deadline: the shell sends an event then, at least a tick.
  std::optional<SteadyNanos> NextDeadline() const;

  // Why everything is refused: most workers know a higher term, of which this state says nothing.
  // Durable, until a restore of a copy. Empty: it is not.
  const std::string& outdated() const { return outdated_; }

  // For metrics: what it has counted, and what it has now.
  Measures Measure() const;
  uint64_t committed_generations() const { return parts_->context.tallies.committed(); }

  // For tests and invariants.
  const JobTable& jobs() const { return parts_->jobs; }
  const NodeTable& nodes() const { return parts_->nodes; }
  const Queue& queue() const { return parts_->queue; }

 private:
  // Everything that a restore replaces.
  struct Parts {
    Context context;
    NodeTable nodes{context};
    NodeCertificates certificates{context, nodes};
    JobTable jobs{context};
    RendezvousStore store{context, nodes, jobs};
    PeerNews peers{context, nodes, jobs};
    BlockedRanks blocked{context, nodes, jobs, peers};
    CheckpointCommits checkpoints{context, jobs, store};
    Inquiries inquiries{context, nodes, jobs};
    Departures departures{context, nodes, jobs};
    Continuation continuation{context, nodes, jobs, departures};
    Generations generations{context, nodes, jobs, store, blocked, peers, departures, continuation};
    Growth growth{context, nodes, jobs, departures, continuation, generations};
    Hangs hangs{context, nodes, jobs, blocked};
    Stragglers stragglers{context, jobs};
    Queue queue{context, nodes, jobs, departures, continuation, generations};
    Dependencies dependencies{jobs, generations};
    Audit audit{context, jobs};
    // In this term.
    bool higher_term_recorded = false;
    // Those that said so last.
    std::set<std::string> nodes_of_higher_term;
    // As outdated_, from the end of the batch on.
    std::string outdated;
    // Submitted in this batch: answered at its end, when it is known whether they wait.
    std::vector<std::pair<uint64_t, std::string>> submitted;
  };

  void Restore(const v1::RestoreEvent& restore);
  void RestoreOptions(const v1::RestoreEvent& restore);
  void RestoreRow(const v1::StateRow& row);
  // `previous`: the time of the event before this one.
  void ExpireDue(SteadyNanos previous);
  void Dispatch(const v1::StateEvent& event);
  void Record(const v1::StateEvent& event);
  void ForgetNodes();
  // session_messages.cc
  void OnSessionMessage(const v1::SessionMessage& event, const v1::Caller& caller);
  // `node`: the worker's; null where it is not known here.
  void OnHigherTerm(uint64_t session_id, const v1::OpenSessionRequest& message, const Node* node);
  // What is answered where the state is outdated.
  Actions Refuse(const v1::StateEvent& event) const;
  void OnHello(uint64_t session_id, const v1::OpenSessionRequest& message,
               const v1::Caller& caller);

  // job_commands.cc
  void Submit(uint64_t call_id, const v1::SubmitJobRequest& request);
  void AnswerSubmitted();
  void Cancel(uint64_t call_id, const v1::CancelJobRequest& request);
  void SetPolicy(const v1::Policy& policy);
  // Reads; see queries.cc.
  void GetJob(uint64_t call_id, const v1::GetJobRequest& request);
  void ListJobs(uint64_t call_id, const v1::ListJobsRequest& request);
  void WatchJob(uint64_t call_id, const v1::WatchJobRequest& request);
  void ListNodes(uint64_t call_id, const v1::ListNodesRequest& request);
  void DescribeCluster(uint64_t call_id, const v1::DescribeClusterRequest& request);
  void ListEvents(uint64_t call_id, const v1::ListEventsRequest& request);
  void ReadLogs(uint64_t call_id, const v1::ReadLogsRequest& request);
  // pictures.cc
  void ReadPictures(uint64_t call_id, const v1::ReadPicturesRequest& request);
  void DescribeLimits(uint64_t call_id, const v1::DescribeLimitsRequest& request);
  void ListUsage(uint64_t call_id, const v1::ListUsageRequest& request);
  void ListAudit(uint64_t call_id, const v1::ListAuditRequest& request);

  std::unique_ptr<Parts> parts_ = std::make_unique<Parts>();
  // In place of all that, after a restore of a copy.
  std::optional<RollCall> roll_call_;
  std::string outdated_;
};

}  // namespace meshrun::coordinator
