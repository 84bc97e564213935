// What a coordinator does on a state that is a copy (state_store/state_copy.h): it may be older
// than what runs on the hosts, and than the term that their workers know.
//
// It asks the workers that say Hello what they run, and takes no call: for a lease, and two seconds
// for workers to connect again; for a minute at most where hosts of the copy have not answered.
// Then one transaction writes what they have said and a term above all that were named, and ends
// the copy. After it the shell begins anew on that state, as after any restart.
// So
//   - a generation that all its hosts run goes on, whether or not the copy knows it, or its job;
//   - a job of the copy that has not ended there, and that nobody runs, may have ended since, or be
//     another user's work by now: it is held in the queue. Its next generation has a number that no
//     former one can have had;
//   - a job with ranks on a host of the copy that has not answered is as after any restart, and
//     held once it is in the queue again;
//   - what else runs is told to end by the coordinator that begins anew.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/state_machine/actions.h"
#include "coordinator/state_machine/reconcile.h"
#include "core/clock.h"
#include "meshrun/v1/session.pb.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

class RollCall {
 public:
  // The first part of the copy; its rows come by Restore.
  explicit RollCall(const v1::RestoreEvent& restore);

  // Hosts are heard from the last part on.
  void Restore(const v1::RestoreEvent& part, SteadyNanos now);

  // `allowed`: what CheckCaller says of the event.
  Actions Step(const v1::StateEvent& event, absl::Status allowed);
  SteadyNanos deadline() const { return AllHaveAnswered() ? earliest_ : latest_; }

 private:
  void OnMessage(const v1::SessionMessage& event, Actions* actions);
  // Why the Hello does not count.
  absl::Status CheckHello(const v1::OpenSessionRequest& message) const;
  void TakeDetails(const std::string& node_id, const v1::OpenSessionRequest& message);
  // Hosts of the copy that were not lost, and each with all that it has named.
  bool AllHaveAnswered() const;

  // Without its rows.
  v1::RestoreEvent restore_;
  // What Reconcile looks at of the copy; of the ranks' store the keys alone.
  std::vector<v1::StateRow> copy_;
  SteadyNanos earliest_ = SteadyNanos::max();
  SteadyNanos latest_ = SteadyNanos::max();
  uint64_t highest_term_;
  // The restore's; empty: it has none.
  std::string name_;
  bool done_ = false;
  std::set<std::string> expected_;
  std::map<std::string, RollCallNode> nodes_;
  // Node and term of each session.
  std::map<uint64_t, std::pair<std::string, uint64_t>> sessions_;
};

}  // namespace meshrun::coordinator
