// Which queued job starts when. Gang admission: a job gets all of its nodes at once, or waits.
//
// Jobs are placed highest priority first, then in the order of their submission. The first job that
// could run here and has to wait is the head. Jobs behind the head start only where that does not
// delay it: on nodes that it does not need, or when their time limit ends before it can start
// (reservation.h). Jobs of lower priority that may be started again are stopped for the head, each
// with its grace and at no charge. A job that could not run here even alone holds up no other.
//
// A pass looks at a job only when something that it needs has changed: at new ones, and, when nodes
// or the head have changed, at the first job of each shape (queue_index.h), kDepth shapes at most.
// So a queue of any length costs a submit one placement. Reasons are derived when somebody reads.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/state_machine/departures.h"
#include "coordinator/state_machine/generations.h"
#include "coordinator/state_machine/reservation.h"

namespace meshrun::coordinator {

class Queue {
 public:
  Queue(Context& context, NodeTable& nodes, JobTable& jobs, Departures& departures,
        Generations& generations);

  // Called at the end of a batch. True: it looked at the whole queue, because nodes or the head of
  // the queue had changed.
  bool PlaceJobs();
  // Whether free nodes are wanted by a queued job that could run here: it waits for nodes, or
  // starts again in a moment. A job that could not run here even alone does not count, since no
  // existing node would help it.
  bool WaitsForNodes() const { return head_.has_value() || delayed_.Next().has_value(); }
  // Ends time limits and deadlines of drains that are over.
  void ExpireDue();
  std::optional<SteadyNanos> NextDeadline() const;
  // After a restart of the coordinator.
  void OnRestored();

  // The node's worker is stopping. Jobs that can continue in process save a checkpoint and leave
  // the node. Jobs that cannot do so yet leave as soon as their ranks have joined. The worker stops
  // the ranks of all other jobs.
  void OnWorkerStopping(const Node& node);
  // Ranks of the job have joined.
  void OnRanksJoined(const std::string& job_id);

  // Requests of clients: queue_commands.cc.
  void UpdateJob(uint64_t call_id, const v1::UpdateJobRequest& request);
  void SignalJob(uint64_t call_id, const v1::SignalJobRequest& request);
  void DrainNode(uint64_t call_id, const v1::DrainNodeRequest& request);
  void UndrainNode(uint64_t call_id, const v1::UndrainNodeRequest& request);
  void RemoveNode(uint64_t call_id, const v1::RemoveNodeRequest& request);

  // Why a queued job waits.
  std::string ReasonOf(const Job& job) const;
  // Placements tried since the start, for tests: the work of the queue.
  size_t placements() const { return placements_; }

 private:
  // The most shapes that one pass looks at.
  static constexpr size_t kDepth = 256;

  struct Head {
    std::string job_id;
    QueuePlace place;
    // Jobs that are being stopped for it.
    std::vector<std::string> victims;
    // Made when a job behind it is looked at.
    std::optional<Reservation> reservation;
  };

  bool HeadIsCurrent() const;
  void PlaceAll();
  // Jobs behind `after` that nobody has looked at.
  void PlaceNew(const QueuePlace& after);
  // Handles a job before the head: starts it, makes it the head, or notes why it cannot run.
  bool StartOrWait(const QueueIndex::Entry& entry);
  // Whether the job is not to start now, although it could: notes why, and until when.
  bool IsDelayed(const QueueIndex::Entry& entry, const Job& job, const Placement* placement);
  // Starts a job behind the head, if it does not delay the head.
  bool Backfill(const QueueIndex::Entry& entry);
  void MakeRoom(const PlacementRequest& request, const Job& job);
  const Reservation& HeadsReservation();
  // `*waits`: as in Departures::Candidates.
  PlacementRequest RequestOf(const Job& job, std::string* waits) const;
  PlacementResult TryPlace(const PlacementRequest& request);
  std::vector<Holder> Holders() const;
  // When the job has given its nodes back at the latest, if it runs or begins now.
  std::optional<SteadyNanos> GoneBy(const Job& job) const;
  // Stops the jobs on the node that may be started elsewhere; what it would do, if `dry`.
  void MoveJobs(Node& node, bool dry, v1::DrainNodeResponse* response);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  Departures& departures_;
  Generations& generations_;
  std::optional<Head> head_;
  size_t placements_ = 0;
  // By node_id.
  DeadlineIndex<std::string> drains_;
  // Jobs that are looked at again then.
  DeadlineIndex<std::string> delayed_;
  // By job_id, the node whose worker is stopping: the job could not be asked to leave it yet.
  std::map<std::string, std::string> leave_once_joined_;
};

}  // namespace meshrun::coordinator
