// Which queued job starts when. Gang admission: a job gets all of its nodes at once, or waits.
//
// Jobs are placed highest priority first; within a priority users take turns (turns.h), and each
// user's jobs go in the order of their submission. The first job that
// could run here and has to wait is the head. Jobs behind the head start only where that does not
// delay it: on nodes that it does not need, or when their time limit ends before it can start
// (reservation.h). Jobs of lower priority that may be started again are stopped for the head, each
// with its grace and at no charge. A job that could not run here even alone holds up no other: its
// shape is parked until the nodes change.
//
// A job is looked at only when something that it needs has changed: new ones at once, and, when
// nodes or the head have changed, the first job of each shape (queue_index.h) in a pass. A pass
// looks at kDepth shapes in a step of the state machine, and goes on in the next one where it
// stopped. One that begins before the last has ended looks at the front, and at where that one had
// come to: behind a head no job stays unseen, however often nodes change. So a queue of any length
// costs a submit one placement. Reasons are derived when somebody reads.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state_machine/continuation.h"
#include "coordinator/state_machine/departures.h"
#include "coordinator/state_machine/generations.h"
#include "coordinator/state_machine/reservation.h"

namespace meshrun::coordinator {

class Queue {
 public:
  Queue(Context& context, NodeTable& nodes, JobTable& jobs, Departures& departures,
        Continuation& continuation, Generations& generations);

  // Called at the end of a batch. True: a pass that was due, because nodes or the head of the queue
  // had changed, has looked at the whole queue.
  bool PlaceJobs();
  // Whether free nodes are wanted by a queued job that could run here: it waits for nodes, or
  // starts again in a moment. A job that could not run here even alone does not count, since no
  // existing node would help it.
  bool WaitsForNodes() const {
    return head_.has_value() || next_.has_value() || delayed_.Next().has_value();
  }
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
  void Update(Job& job, const v1::UpdateJobRequest& request);
  // The most shapes that a pass looks at before other events have their turn.
  static constexpr size_t kDepth = 256;

  struct Head {
    std::string job_id;
    QueuePlace place;
    // Jobs that are being stopped for it.
    std::vector<std::string> victims;
    // Made when a job behind it is looked at.
    std::optional<Reservation> reservation;
    // Those that it could be placed on when it became the head.
    std::set<std::string> nodes;
  };

  bool HeadIsCurrent() const;
  // False: the last pass had come further, and is to go on there.
  bool BeginPass();
  // Looks on from next_, which is there.
  void GoOn();
  // Looks at kDepth shapes behind `place` that this pass has not seen. Returns where it stopped;
  // absent: at the end of the queue.
  std::optional<QueuePlace> LookFrom(QueuePlace place);
  // Jobs behind `after` that nobody has looked at.
  void PlaceNew(const QueuePlace& after);
  // Handles a job before the head: starts it, makes it the head, or notes why it cannot run.
  bool StartOrWait(const QueueIndex::Entry& entry);
  // For a job that finds no place without the nodes that it avoids. Leaves in `*request` those that
  // it tried last.
  PlacementResult TryAvoidedToo(const Job& job, PlacementRequest* request,
                                std::optional<QuotaRefusal>* refused);
  // Whether the job could run here if nothing else did. Otherwise its shape is parked, and says
  // why.
  bool CouldRun(const QueueIndex::Entry& entry, const Job& job);
  // The sentence, and which nodes do not count.
  std::string WithOthers(std::string reason) const;
  // As TryPlace, on as many nodes as the quotas of the job allow. `*refused`: why they allow none.
  PlacementResult TryPlaceWithin(const Job& job, const PlacementRequest& request,
                                 std::optional<QuotaRefusal>* refused);
  // Whether its quotas, or another job that waits for them, keep the job back: notes why.
  bool IsOverQuota(const QueueIndex::Entry& entry, const Job& job);
  // `ever`: it could start if nobody else ran. Returns false.
  bool NoteOverQuota(const QueueIndex::Entry& entry, const Job& job, const QuotaRefusal& refused,
                     bool ever = true);
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
  // Stops jobs on the node, so that they go on elsewhere: those that may be started anew, or all.
  // With kNone it only answers what kRestartable would do.
  enum class Move { kNone, kRestartable, kAll };
  void MoveJobs(Node& node, Move which, v1::DrainNodeResponse* response);
  // FAILED_PRECONDITION: a job cannot go on without it.
  absl::Status CheckMayLeave(const Node& node);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  Departures& departures_;
  Continuation& continuation_;
  Generations& generations_;
  std::optional<Head> head_;
  // By account or partition, the first job in this pass that its quota keeps back: those behind it
  // in the same account or partition wait.
  std::map<std::string, std::string> waits_in_;
  uint64_t pass_ = 0;
  // Where the pass goes on; absent: it has ended.
  std::optional<QueuePlace> next_;
  // NodeTable::composition as parked shapes know it.
  uint64_t composition_ = 0;
  size_t placements_ = 0;
  // By node_id.
  DeadlineIndex<std::string> drains_;
  // Jobs that are looked at again then.
  DeadlineIndex<std::string> delayed_;
  // By job_id, the node whose worker is stopping: the job could not be asked to leave it yet.
  std::map<std::string, std::string> leave_once_joined_;
};

}  // namespace meshrun::coordinator
