// Ranks of the job that are gone, and which operations fail for their sake.
//
// News comes from the watch, which knows why, and from connections, which break first and know
// less. An operation that still needs such a rank fails kGrace later: what the rank sent before may
// be on its way or, after a pause in which nobody made rounds, unread.
//
// A rank that says in a group that it leaves, or whose connection breaks, may be a process that
// ends: after an exception in Python that takes as long as the interpreter's end. Where the watch
// sees ends, its word is awaited for kWord. It alone tells a rank that failed, in whose place
// another one may come, from one that has left; and a rank that fails for the sake of another one
// must not end before that one has.
//
// Threads: under the engine's lock. No errors.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "core/clock.h"
#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/liveness/peer_watch.h"

namespace meshrun::ucx {

class PeerLiveness {
 public:
  static constexpr std::chrono::nanoseconds kGrace = std::chrono::milliseconds(200);
  // Shorter than the coordinator's search for ranks that wait in vain.
  static constexpr std::chrono::nanoseconds kWord = std::chrono::seconds(3);

  explicit PeerLiveness(bool watch_sees_ends = false) : watch_sees_ends_(watch_sees_ends) {}

  // Each round of the executor.
  void note_round(SteadyNanos now);

  // The watch's word replaces a connection's, which may come first: a rank that leaves breaks its
  // connections, too.
  void lost(int world_rank, const std::string& reason, SteadyNanos now);
  void left(int world_rank, SteadyNanos now);
  // A member has left one group, and says so in it (Member::left).
  void left_group(SteadyNanos now);
  void connection_broke(int world_rank, const std::string& reason, SteadyNanos now);
  // The job is asked to stop: named in the failures that follow.
  void stopping(const std::string& reason) { stopping_ = reason; }
  // The world is over. Operations that still wait fail two graces later. An operation that needs a
  // rank that is gone fails for that rank: the delay lets the news of the loss arrive.
  void superseded(const std::string& reason, SteadyNanos now);
  // " The job is stopping: ...", or nothing.
  std::string stopping_sentence() const;

  bool is_anyone_gone() const { return !gone_.empty(); }
  // An operation begins, or something moves: what check() said may have changed.
  void look_soon(SteadyNanos now) {
    if (is_anyone_gone() || has_left_group_ || superseded_)
      next_check_ = std::min(next_check_, now + kGrace);
  }

  // A lower bound of the time at which check() has something to say.
  SteadyNanos next_check() const { return next_check_; }
  void begin_checks() { next_check_ = SteadyNanos::max(); }
  // What the group fails with, since one of its operations needs a rank that is gone, or the world
  // is over. Called for each group after begin_checks().
  std::optional<Failure> check(const MemberGroup& group, SteadyNanos now);

 private:
  struct Gone {
    bool left = false;
    std::string reason;
    SteadyNanos since{0};
    bool is_of_connection = false;
  };
  struct Due {
    SteadyNanos at{0};
    int rank = -1;  // of the group: the one it fails for
  };
  void gone(int world_rank, bool left, const std::string& reason, bool is_of_connection,
            SteadyNanos now);
  // Absent: the operation needs none of them.
  std::optional<Due> due(const RunningOperation& operation) const;
  Failure failure(const RunningOperation& operation, int rank) const;

  const bool watch_sees_ends_;
  std::map<int, Gone> gone_;     // by world rank
  bool has_left_group_ = false;  // some member of some group
  std::string stopping_;
  struct Superseding {
    std::string reason;
    SteadyNanos due{0};
  };
  std::optional<Superseding> superseded_;
  SteadyNanos last_round_{0};
  // When rounds were last resumed after a pause: nobody waits, or the process was stopped.
  SteadyNanos resumed_{0};
  SteadyNanos next_check_ = SteadyNanos::max();
};

// What a verdict of the watch means for a group that it concerns.
struct GroupVerdict {
  Failure failure;
  bool names_this_rank = false;  // then its sends and receives end
  uint64_t resume_at = 0;        // collectives below this end; 0: numbers stay as they are

  bool ends(const RunningOperation& operation) const {
    return operation.is_point_to_point ? names_this_rank : operation.sequence() < resume_at;
  }
};
// Absent: the verdict is not about this group.
std::optional<GroupVerdict> verdict_on(const MemberGroup& group, const WaitVerdict& verdict);

}  // namespace meshrun::ucx
