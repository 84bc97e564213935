// The life of one generation of a job: two-phase start, failure, stop, restart.
//
//   Begin: RENDEZVOUS, Prepare to each member
//     all answer ok ------------------> RUNNING, Start to each member
//     one cannot (its host) ----------> Forget to all; once more without it, then FAILED
//     one cannot (bad command) -------> Forget to all; FAILED
//   RUNNING
//     every member ended, all ranks 0 -> SUCCEEDED
//     first failure, or cancel -------> QUIESCING, Stop to each member at once
//   QUIESCING, every member ended or lost:
//     cancelled --> CANCELLED;  restarts left --> WAITING (placed anew);  else --> FAILED
//
// A worker that is stopping (DRAINING, Goodbye) takes its ranks with it on purpose: the restart is
// not charged, and a Prepare that it refuses only places the job anew.
#pragma once

#include <string>
#include <vector>

#include "coordinator/state_machine/blocked_ranks.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"
#include "coordinator/state_machine/placement.h"
#include "coordinator/state_machine/rendezvous_store.h"

namespace meshrun::coordinator {

class Generations {
 public:
  Generations(Context& context, NodeTable& nodes, JobTable& jobs, RendezvousStore& store,
              BlockedRanks& blocked)
      : context_(context), nodes_(nodes), jobs_(jobs), store_(store), blocked_(blocked) {}

  // Phase one of the next generation.
  void Begin(Job& job, const Placement& placement);

  // Messages of a node's session, with their fences. Messages of another generation are logged and
  // ignored.
  void OnPrepareResult(Node& node, const v1::Fence& fence, const v1::PrepareResult& result);
  void OnRanksStarted(Node& node, const v1::Fence& fence, const v1::RanksStarted& started);
  void OnRankExit(Node& node, const v1::Fence& fence, const v1::RankExit& exit);
  void OnEnded(Node& node, const v1::Fence& fence);
  void OnProgress(Node& node, const v1::Fence& fence, const v1::ProgressReport& report);
  void OnWaitReport(Node& node, const v1::Fence& fence, const v1::WaitReport& report);
  void OnWaitWithdrawn(Node& node, const v1::Fence& fence, const v1::WaitWithdrawn& withdrawn);

  // The node has said Hello: adopts the generations that it runs, answers Forget for unknown ones,
  // and repeats commands that may have been lost with the old session.
  void OnNodeReturned(Node& node, const v1::Hello& hello);
  // The node is LOST: so are its ranks.
  void OnNodeLost(Node& node, const std::string& why);

  // Idempotent. `now` also ends the grace of a stop that is under way.
  void Cancel(Job& job, bool now, const std::string& reason);
  // The deadline of the job's state has passed.
  void OnDeadline(Job& job);
  // After a restart of the coordinator, all nodes being SUSPECT.
  void OnRestored();

 private:
  struct Target {
    Job* job = nullptr;
    Member* member = nullptr;
  };
  Target Resolve(const Node& node, const v1::Fence& fence, std::string_view what);
  v1::OpenSessionResponse Envelope(const Job& job, const Node& node) const;
  void SendPrepare(const Job& job, const Member& member);
  void SendStart(const Job& job, const Member& member);
  void SendStop(const Job& job, const Member& member, std::chrono::nanoseconds grace);
  void SendForget(const std::string& job_id, uint64_t generation, const Node& node);

  void Commit(Job& job);
  void Abandon(Job& job);
  void Requeue(Job& job, std::string reason);
  void TakeExit(Job& job, const Node& node, const v1::RankExit& exit);
  void Fail(Job& job, v1::FailureCause cause, std::string message, const Node* node,
            const v1::RankExit* exit);
  void Quiesce(Job& job, std::chrono::nanoseconds grace, std::string reason);
  void EndMember(Job& job, Member& member, bool lost);
  void EndGeneration(Job& job, const std::string& why);
  void Conclude(Job& job);
  void Finish(Job& job, v1::JobState state, std::string reason);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  RendezvousStore& store_;
  BlockedRanks& blocked_;
};

}  // namespace meshrun::coordinator
