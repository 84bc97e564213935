// Commands to the hosts of a generation, as messages of their sessions. A host that is not
// connected is sent nothing: it is told when it returns.
#pragma once

#include <string>

#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"

namespace meshrun::coordinator {

// For ranks to finish their step, agree and save, once they are asked to stand still.
inline constexpr std::chrono::seconds kQuiesceTimeout(60);

class MemberCommands {
 public:
  MemberCommands(Context& context, NodeTable& nodes) : context_(context), nodes_(nodes) {}

  void Prepare(const Job& job, const Member& member);
  void Start(const Job& job, const Member& member);
  // To a member that has not ended.
  void Stop(const Job& job, const Member& member, std::chrono::nanoseconds grace);
  void Quiesce(const Job& job, const Member& member);
  // A worker says nothing to a signal. So what may be lost with the session before is sent again:
  // SIGSTOP to paused ranks, SIGCONT to those that were told to go on lately.
  void RepeatPauses(Job& job, const Member& member);
  void Forget(const std::string& job_id, uint64_t generation, const Node& node);

 private:
  Context& context_;
  NodeTable& nodes_;
};

}  // namespace meshrun::coordinator
