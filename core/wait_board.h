// Do ranks wait for each other in vain? Decides from what blocked ranks report: in which operations
// of which groups their threads are blocked, and how many operations of each group they have
// called.
//
// Used by the coordinator for its jobs and, without one, by rank 0 (HubWatch). Pure; one clock, the
// caller's. Only blocked ranks report; a rank that computes is slow, which is not an error, so
// silence never makes a verdict.
//
//   left       A member of the group has exited without calling the operation, and no other member
//              can still call it.
//   suspicion  Each of several blocked ranks waits for one that has not called its operation and is
//              itself blocked in another: a cycle. A sentence for the log; it ends nothing.
//   deadlock   A suspicion that has not changed for WaitReport::deadlock_after, on ranks all of
//              whose threads that have ever called an operation are blocked. It ends the
//              operations.
//
// A mismatch within one group is found by the ranks' own header check; a send or receive whose peer
// has left, by the rank itself.
//
// Limits: a thread that has not called any operation yet is unknown here, so a deadlock may be
// raised that its first call would have resolved. A thread that has called one and is idle now may
// call again, so there is only the suspicion, and the operation's timeout decides. Tags of messages
// are not compared: two ranks that send and receive with different tags get no verdict.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/group_members.h"

namespace meshrun {

// An operation in which a thread is blocked.
struct WaitCall {
  std::string group;  // disjoint groups may share a name
  GroupMembers members;
  uint64_t sequence = 0;
  // Point to point: the ranks that it waits for; any one of several is enough. Empty for a
  // collective.
  std::vector<int> peers;
  std::string operation;  // in words: "all_reduce number 17 of group "world" (float32 [1024])"
  // Members may have finished the operation: it is past its header check, or has none.
  bool is_moving = false;

  bool operator==(const WaitCall&) const = default;
};

struct WaitReport {
  // After so long a cycle is an error, unless the rank's environment says otherwise.
  static constexpr SteadyNanos kDeadlockAfter = std::chrono::seconds(3);

  int rank = 0;
  // One for each operation in which a thread has been blocked for WaitBoard::kReportAfter. The rank
  // goes on when one of them ends.
  std::vector<WaitCall> calls;
  // Number of collectives called so far, by group, of every group the rank is in.
  std::map<std::string, uint64_t> called;
  // The messages that the rank has under way in any group, those of `calls` among them: a rank does
  // not wait in vain for one that it exchanges with. A receive from any rank names every rank that
  // may send.
  std::set<int> sending_to, receiving_from;
  // Threads that have called operations before and are not blocked in `calls`: they may call more.
  int other_threads = 0;
  // MESHRUN_DEADLOCK_SECONDS of the rank, from the start of the wait; 0: never an error.
  SteadyNanos deadlock_after = kDeadlockAfter;

  bool operator==(const WaitReport&) const = default;
};

struct WaitVerdict {
  struct Group {
    std::string name;
    std::vector<int> members;  // which of those with that name
    // The number at which it goes on: one above the highest that any member called. Members that
    // had not called it skip it, so that they agree again. 0: its numbers stay as they are, since
    // only sends and receives between the ranks below are concerned.
    uint64_t resume_at = 0;
  };

  std::string message;
  std::vector<int> ranks;  // ascending: those in the cycle, or those that have left
  bool deadlock = false;   // else: left
  // The groups whose operations it ends.
  std::vector<Group> groups;
};

class WaitBoard {
 public:
  // A rank reports a thread that has been blocked for so long.
  static constexpr std::chrono::seconds kReportAfter{2};
  // A verdict needs reports that have not changed for so long: others may be on their way.
  static constexpr std::chrono::seconds kSettle{1};
  // Reports that come within so long are judged together, of many ranks within longer.
  static constexpr std::chrono::milliseconds kGather{100};
  static constexpr std::chrono::microseconds kGatherPerRank{50};

  // Replaces the rank's last report; an equal one keeps its time.
  void Report(WaitReport report, SteadyNanos now);
  // The rank is not blocked any more, or has died.
  void Withdraw(int rank);
  void Left(int rank, SteadyNanos now);

  // Sentences about cycles, each returned once.
  std::vector<std::string> Suspect(SteadyNanos now);
  // Verdicts that are due. Each is returned once, and the reports of the operations that it ends
  // are forgotten.
  std::vector<WaitVerdict> Decide(SteadyNanos now);
  // When to call both next; absent: not before the next report.
  std::optional<SteadyNanos> NextDecision() const { return next_; }
  bool IsBlocked(int rank) const { return waiting_.contains(rank); }
  // Members that neither are blocked nor have left: for the sentence of a timeout.
  std::vector<int> Silent(const std::vector<int>& members) const;

 private:
  class Moment;
  struct Entry {
    WaitReport report;
    SteadyNanos since{0};
  };

  // A suspicion may be the same again after a report was withdrawn. Only the latest are remembered.
  static constexpr size_t kRemembered = 256;

  void Forget(const WaitVerdict& verdict);
  void DecideAt(SteadyNanos time);

  std::map<int, Entry> waiting_;
  // Members of every group that was ever named: reports share them.
  std::set<GroupMembers> members_;
  std::map<int, SteadyNanos> left_;
  std::optional<SteadyNanos> next_;
  std::deque<std::string> said_;
};

}  // namespace meshrun
