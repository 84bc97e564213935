// Operations whose time is up, and the sentence that says for whom they waited.
//
// A collective whose time is up first asks the members how far they are, for at most kAskFor. So
// the sentence names the ranks that have not called it, and not also the ranks that wait for those.
// If all ranks have called it, it gets the rest of kAskFor as more time.
//
// Threads: under the engine's lock. No errors.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "core/clock.h"
#include "parallel/comm/ucx/engine/execution/connections.h"
#include "parallel/comm/ucx/engine/execution/control_channel.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"

namespace meshrun::ucx {

class Timeouts {
 public:
  static constexpr std::chrono::nanoseconds kAskFor = std::chrono::milliseconds(100);

  // Both outlive it.
  Timeouts(Connections& connections, ControlChannel& control)
      : connections_(connections), control_(control) {}

  // An operation with this deadline begins.
  void watch(SteadyNanos deadline) { next_ = std::min(next_, deadline); }
  // A lower bound of the first deadline.
  SteadyNanos next() const { return next_; }
  // All operations whose deadline has passed.
  std::vector<OperationPtr> due(const Groups& groups, SteadyNanos now);

  // Asks, the first time that the operation is due, and moves its deadline. False: it has asked, or
  // has nobody to ask; failure() says what it ends with.
  bool ask_members(RunningOperation& operation, SteadyNanos now);
  // Asks a member that has just become known, for each operation of the group that asks.
  void ask_member(MemberGroup& group, int rank);
  // A member asks: answers now, or when its address is known.
  void asked(MemberGroup& group, int rank, uint64_t sequence);
  void answer_if_asked(MemberGroup& group, int rank);
  // A member's answer: the operation is due at once when all have answered and one has not called.
  void answered(MemberGroup& group, int rank, const ControlHead& answer, SteadyNanos now);

  // `suffix` ends the sentence.
  static Failure failure(const RunningOperation& operation, const std::string& suffix);

 private:
  Connections& connections_;
  ControlChannel& control_;
  SteadyNanos next_ = SteadyNanos::max();
};

}  // namespace meshrun::ucx
