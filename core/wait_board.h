// Do ranks wait for each other in vain? Decides from what blocked ranks report: in which operation
// of which group, and how many operations of each group they have called so far.
//
// Used by the coordinator for its jobs and, without one, by rank 0 (HubWatch). Pure; one clock, the
// caller's. Only ranks that are blocked report; a rank that computes is slow, which is no error, so
// silence never makes a verdict.
//
//   left      a member of the group has exited without calling the operation, and nobody computes
//             who could still call it
//   deadlock  each of several blocked ranks waits for one that has not called its operation and is
//             itself blocked in another: a cycle, unchanged for kSettle
//
// A mismatch within one group is found by the ranks' own header check; a send or receive whose peer
// has left, by the rank itself.
//
// Limits: a rank is taken to be blocked as a whole, so one whose other threads call operations must
// not report. Tags of messages are not compared: between two ranks that send and receive with
// different tags there is no verdict, and the operation ends by its timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/clock.h"

namespace meshrun {

struct WaitReport {
  int rank = 0;
  std::string group;         // disjoint groups may share a name
  std::vector<int> members;  // world ranks, by rank in the group
  uint64_t sequence = 0;     // of the operation it is blocked in
  // Point to point: whom it waits for, of several any one will do; else empty.
  std::vector<int> peers;
  std::string operation;  // in words: "all_reduce number 17 of group "world" (float32 [1024])"
  // Members may have finished the operation: it is past its header check, or has none.
  bool is_moving = false;
  // Number of collectives called so far, by group, of every group the rank is in.
  std::map<std::string, uint64_t> called;
  // The messages that it has under way in any group, the one it is blocked in among them: a rank
  // does not wait in vain for one that it exchanges with. From any: every rank that may send.
  std::set<int> sending_to, receiving_from;

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
  std::vector<int> ranks;  // whom it is about, in ascending order
  bool deadlock = false;   // else: left
  // Those whose operations it ends.
  std::vector<Group> groups;
};

class WaitBoard {
 public:
  // When a rank reports. Its text goes to the agent or the hub.
  static constexpr std::chrono::seconds kReportAfter{2};
  static constexpr std::chrono::seconds kSettle{1};

  // In place of the rank's last; its time goes on where it says the same.
  void Report(const WaitReport& report, SteadyNanos now);
  // It is blocked no longer, or has died.
  void Withdraw(int rank);
  void Left(int rank, SteadyNanos now);

  // Verdicts that are due. Each is returned once, and the reports of the operations that it ends
  // are forgotten.
  std::vector<WaitVerdict> Decide(SteadyNanos now);
  // Those of `members` that neither are blocked nor have left: for the sentence of a timeout.
  std::vector<int> Silent(const std::vector<int>& members) const;

 private:
  class Moment;
  struct Entry {
    WaitReport report;
    SteadyNanos since;
  };

  void Forget(const WaitVerdict& verdict);

  std::map<int, Entry> waiting_;
  std::map<int, SteadyNanos> left_;
};

}  // namespace meshrun
