// What a coordinator does that was started with --restored, on a state that is a copy: it may be
// older than what runs on the hosts, and than the term that their workers know.
//
// For a lease, and two seconds for workers to connect again, it asks those that say Hello what they
// run, and takes no call. Then it writes into the state what they have said, and asks the shell to
// begin anew on that: in a term above all that were named, as after any restart. So
//   - a generation that all its hosts run goes on, whether or not the copy knows it, or its job;
//   - a job of the copy that has not ended there, and that nobody runs, may have ended since, or be
//     another user's work by now: it is held in the queue. Its next generation has a number that no
//     former one can have had;
//   - what else runs is told to end by the coordinator that begins anew.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/actions.h"
#include "core/clock.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

// A host that has answered the roll call.
struct RollCallNode {
  v1::Hello hello;
  uint64_t incarnation = 0;
  // What it was told of each generation that it runs, by job and generation.
  std::map<std::pair<std::string, uint64_t>, v1::GenerationDetails> details;
};

struct RollCallResult {
  // Changes of the state.
  std::vector<v1::StateRow> rows;
  // "2 jobs go on, 1 of which the copy did not know; ...".
  std::string summary;
};

// The copy after what the hosts have said. Pure. `wall`: now.
RollCallResult Reconcile(const std::vector<v1::StateRow>& copy,
                         const std::map<std::string, RollCallNode>& nodes, WallNanos wall);

class RollCall {
 public:
  RollCall(const v1::RestoreEvent& restore, SteadyNanos now);

  // `allowed`: what CheckCaller says of the event.
  Actions Step(const v1::StateEvent& event, absl::Status allowed);
  SteadyNanos deadline() const { return deadline_; }

 private:
  void OnMessage(const v1::SessionMessage& event, Actions* actions);

  v1::RestoreEvent restore_;
  const SteadyNanos deadline_;
  uint64_t highest_term_;
  bool done_ = false;
  std::map<std::string, RollCallNode> nodes_;
  // Node and term of each session.
  std::map<uint64_t, std::pair<std::string, uint64_t>> sessions_;
};

}  // namespace meshrun::coordinator
