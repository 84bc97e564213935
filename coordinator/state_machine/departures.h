// Members that leave: hosts of a job's generations whose processes may not be gone. The host is
// lost, or was told to end them, or cannot end them. What they hold stays held until the host says
// that they have ended, and no other node takes their place while they may compute.
//
// Without errors of its own: what is wrong with a host is an event and a reason for its drain.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/deadline_index.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/member_commands.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

// How a member's part in a generation ends.
enum class MemberEnd {
  kEnded,      // and said so
  kGone,       // without a word on how
  kLost,       // with their node: they may run on
  kToldToEnd,  // not yet
  kStuck,      // sent SIGKILL, and yet there
};

class Departures {
 public:
  Departures(Context& context, NodeTable& nodes, JobTable& jobs)
      : context_(context), nodes_(nodes), jobs_(jobs), commands_(context, nodes) {}

  // `how`: kLost, kToldToEnd or kStuck.
  void Leave(Job& job, Member& member, MemberEnd how);
  // Whether ranks of it may still compute, as far as the coordinator can know.
  bool MayCompute(const LeavingMember& leaving) const;
  // The healthy nodes that the job's next generation may use now. If it may use more nodes later,
  // `*waits` says what the job waits for; otherwise `*waits` is empty.
  std::vector<const v1::Node*> Candidates(const Job& job, std::string* waits) const;
  // Why nothing new is placed on the node: processes there that do not end.
  void UpdateDrainReason(Node& node);

  // The host runs a generation that it was told to end: tells it again, since the first Stop may be
  // lost. False where it was told nothing.
  bool StopAgain(const Job& job, const Node& node, const v1::RunningGeneration& running);
  // The node says that nothing is left of this generation, nor of earlier ones. False where none of
  // them was leaving.
  bool OnEnded(Node& node, const v1::Fence& fence);
  // Those of the node that Hello does not name are gone; the others are told to end.
  void OnNodeReturned(Node& node, const v1::Hello& hello);
  // The LOST node's fence time has come.
  void OnNodeFenced(Node& node);
  // The LOST node is about to be removed, and no rank computes there: what it holds for jobs is
  // given up.
  void OnNodeForgotten(Node& node);

  // Members whose hosts are connected and have not ended them in time are stuck.
  void ExpireDue();
  std::optional<SteadyNanos> NextDeadline() const { return deadlines_.Next(); }
  // The coordinator itself stood still.
  void Postpone() { deadlines_.PostponeTo(context_.now + context_.lease); }
  // Jobs of which a member has left since the last call, or may not compute any more.
  std::set<std::string> TakeChanged() { return std::exchange(changed_, {}); }

 private:
  // Rest of the grace of a member that was told to end.
  std::chrono::nanoseconds GraceLeft(const Job& job, const LeavingMember& leaving) const;
  void Release(Job& job, size_t index);

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  MemberCommands commands_;
  // (job, node) of those that were told to end.
  DeadlineIndex<std::pair<std::string, std::string>> deadlines_;
  std::set<std::string> changed_;
};

}  // namespace meshrun::coordinator
