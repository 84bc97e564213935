// The life of one generation of a job: two-phase start, failure, change, stop, restart.
//
//   Begin: RENDEZVOUS, Prepare to each member
//     all answer ok ------------------> RUNNING, Start to each member
//     one cannot (its host) ----------> Forget to all; placed again without it (refusals.h)
//     one cannot (bad command) -------> Forget to all; likewise, FAILED when a second host agrees
//   RUNNING
//     every member ended, all ranks 0 -> SUCCEEDED
//     first failure, every rank that is left takes another generation in process
//                               ------> QUIESCING without Stop; then the next generation, with them
//     first failure else, or cancel --> QUIESCING, Stop to each member at once
//   QUIESCING, every member ended or lost:
//     cancelled --> CANCELLED;  restarts left --> WAITING (placed anew);  else --> FAILED
//
// Once a rank has reported that the generation's work is finished, no generation follows it: a
// death by a signal from outside (SIGKILL, SIGTERM, ...) or a lost host is an event; an exit code
// other than 0 and a crash of the program (SIGSEGV, SIGABRT, ...) end the job as FAILED.
// A generation with processes that live on (survivors) fails in RENDEZVOUS as it would in RUNNING.
// A worker that is stopping (DRAINING, Goodbye) takes its ranks with it on purpose: the restart is
// not charged, and a Prepare that it refuses only places the job anew.
//
// A member whose node is lost, or whose ranks do not die, is leaving: it holds what it held until
// its node says that the ranks have ended. No other node takes its place before the node's fence
// time, unless the job's writes are fenced.
//
// generations.cc has the start, recovery.cc failures and the end, stops.cc stops that are neither,
// generations_in_process.cc what goes on in process, finished_ranks.cc generations whose work is
// finished, adoption.cc returning nodes and restarts. What they decide by are values and classes of
// their own: restart_budget.h what a failure costs, continuation.h which ranks live on,
// departures.h which members may not be gone, growth.h when a job asks for more nodes,
// member_commands.h what hosts are told.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/state_machine/blocked_ranks.h"
#include "coordinator/state_machine/continuation.h"
#include "coordinator/state_machine/departures.h"
#include "coordinator/state_machine/hangs.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/member_commands.h"
#include "coordinator/state_machine/nodes.h"
#include "coordinator/state_machine/peer_news.h"
#include "coordinator/state_machine/placement.h"
#include "coordinator/state_machine/rendezvous_store.h"
#include "coordinator/state_machine/restart_budget.h"

namespace meshrun::coordinator {

// SHA-256 of the table with its maps in a fixed order: the same on every host.
std::string WorldDigest(const v1::World& world);

class Generations {
 public:
  Generations(Context& context, NodeTable& nodes, JobTable& jobs, RendezvousStore& store,
              BlockedRanks& blocked, PeerNews& peers, Departures& departures,
              Continuation& continuation)
      : context_(context),
        nodes_(nodes),
        jobs_(jobs),
        store_(store),
        blocked_(blocked),
        peers_(peers),
        departures_(departures),
        continuation_(continuation),
        commands_(context, nodes) {}

  // Phase one of the next generation, with processes of its own.
  void Begin(Job& job, const Placement& placement) { Begin(job, placement, {}); }

  // Messages of a node's session, with their fences. Messages of another generation are logged and
  // ignored.
  void OnPrepareResult(Node& node, const v1::Fence& fence, const v1::PrepareResult& result);
  void OnRanksStarted(Node& node, const v1::Fence& fence, const v1::RanksStarted& started);
  void OnRanksJoined(Node& node, const v1::Fence& fence, const v1::RanksJoined& joined);
  void OnRanksQuiesced(Node& node, const v1::Fence& fence, const v1::RanksQuiesced& quiesced);
  void OnRankExit(Node& node, const v1::Fence& fence, const v1::RankExit& exit);
  void OnEnded(Node& node, const v1::Fence& fence);
  // Calls of ranks.
  void OnReportFinished(uint64_t call_id, const v1::ReportFinishedRequest& request);
  void OnGetFinished(uint64_t call_id, const v1::GetFinishedRequest& request);
  // What has changed; absent where the report was ignored, or the job does not run.
  std::optional<StepChange> OnProgress(Node& node, const v1::Fence& fence,
                                       const v1::ProgressReport& report);
  void OnWaitReport(Node& node, const v1::Fence& fence, const v1::WaitReport& report);
  void OnWaitWithdrawn(Node& node, const v1::Fence& fence, const v1::WaitWithdrawn& withdrawn);

  // The node has said Hello: adopts the generations that it runs, answers Forget for unknown ones,
  // and repeats commands that may have been lost with the old session.
  void OnNodeReturned(Node& node, const v1::Hello& hello);
  // The node is LOST: so are its ranks. `stopped`: its worker has said that they were stopped.
  void OnNodeLost(Node& node, const std::string& why, bool stopped);
  // A running job asks its ranks to stand still, and goes on with the nodes that there are then.
  // False: not all of them can, nothing has changed.
  bool AskToQuiesce(Job& job, const std::string& reason, bool save);
  // A running generation stands still; `rank`: who is to blame, or -1.
  void OnHung(Job& job, int rank, const std::string& message);

  // Idempotent. `now` also ends the grace of a stop that is under way.
  // `first_signal`: as in CancelJobRequest.
  void Cancel(Job& job, bool now, const std::string& reason, int first_signal = 0);
  // Stops the ranks with the job's grace for `intent`, unless they are being stopped already, or
  // gives a generation up that has not started. `event` is recorded with the reason and
  // the node that it is about, if there is one.
  void Stop(Job& job, v1::StopIntent intent, std::string_view event, std::string_view node_id,
            std::string reason);
  // The deadline of the job's state has passed.
  void OnDeadline(Job& job);
  // After a restart of the coordinator, all nodes being SUSPECT.
  void OnRestored();
  // At the end of a batch: jobs whose survivors wait go on where they can.
  void ProceedAll();

 private:
  struct Target {
    Job* job = nullptr;
    Member* member = nullptr;
  };
  Target Resolve(const Node& node, const v1::Fence& fence, std::string_view what);
  void Begin(Job& job, const Placement& placement, const SurvivingRanks& survivors);
  void AddMember(Job& job, const PlacedNode& placed, const std::vector<v1::RankStatus>* survivors,
                 v1::World* world);
  void Commit(Job& job);
  void Abandon(Job& job);
  void Requeue(Job& job, std::string reason);
  // The member's ranks run.
  void CountStarted(Job& job, Member& member);
  // A host has prepared a generation of a job that it has no part in.
  void ForgetPrepared(const Node& node, const v1::Fence& fence);
  // A host cannot prepare: the generation is given up.
  void OnPrepareFailed(Job& job, Node& node, const v1::PrepareResult& result);

  // adoption.cc
  void TakeOver(Job& job, Member& member, Node& node, const v1::RunningGeneration& running);
  void OnUnnamed(Node& node, const std::set<std::string>& carried);
  bool MayFail(const Job& job) const;

  // generations_in_process.cc
  // `asked`: the ranks have been asked to stand still.
  void SurvivorsWait(Job& job, bool asked, const std::string& reason);
  void Proceed(Job& job);
  bool ContinueInProcess(Job& job);
  void RequeueOnceStopped(Job& job, std::string reason);
  void OnJoinDeadline(Job& job);

  // recovery.cc
  void TakeExit(Job& job, const Node& node, const v1::RankExit& exit);
  void Fail(Job& job, v1::FailureCause cause, std::string message, const Node* node,
            const v1::RankExit* exit);
  // From the second one on the job avoids the node.
  void CountFailure(Job& job, const Node& node);
  void RecordFailure(Job& job, v1::FailureCause cause, const std::string& message, const Node* node,
                     const v1::RankExit* exit);
  void FailJob(Job& job, v1::FailureCause cause, const std::string& message, const Node* node);
  void Quiesce(Job& job, std::chrono::nanoseconds grace, std::string reason);
  void EndMember(Job& job, Member& member, MemberEnd how);
  void EndGeneration(Job& job, const std::string& why);
  std::string Unheard(const Job& job) const;
  void Conclude(Job& job);
  // What Stop() was for: stops.cc. False when it was for nothing, or came too late.
  bool ConcludeStop(Job& job);
  void Finish(Job& job, JobPhase end, std::string reason);

  // finished_ranks.cc: what ends after the job's work was finished.
  void TakeExitAfterFinish(Job& job, const Node& node, const v1::RankExit& exit);
  // `what`: a sentence without its full stop.
  void NoteEndAfterFinish(const Job& job, const Node& node, const std::string& what);
  // Why a job that succeeded did not end cleanly; empty where it did.
  std::string EndsAfterFinish(const Job& job) const;

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  RendezvousStore& store_;
  BlockedRanks& blocked_;
  PeerNews& peers_;
  Departures& departures_;
  Continuation& continuation_;
  MemberCommands commands_;
  // Jobs whose survivors wait, and of which something has changed.
  std::set<std::string> proceed_;
};

}  // namespace meshrun::coordinator
