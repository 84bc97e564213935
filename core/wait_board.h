// Do ranks wait for each other in vain? Decides from what blocked ranks report: in which operation
// of which group, and how many operations of each group they have called so far.
//
// Used by the coordinator for its jobs and, without one, by rank 0 (HubWatch). Pure; one clock, the
// caller's. Only ranks that are blocked report; a rank that computes is slow, which is no error, so
// silence never makes a verdict.
//
//   left      a member of the group has exited without calling the operation
//   deadlock  each of several blocked ranks waits for one that has not called its operation and is
//             itself blocked in another: a cycle, unchanged for kSettle
//
// (A mismatch within one group is found by the ranks' own header check.)
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"

namespace meshrun {

struct WaitReport {
  int rank = 0;
  std::string group;
  std::vector<int> members;  // world ranks, by rank in the group
  uint64_t sequence = 0;     // of the operation it is blocked in
  std::vector<int> peers;    // point to point: whom it waits for; else empty
  std::string operation;     // in words: "all_reduce of float32 [1024]"
  // Number of collectives called so far, by group, of every group the rank is in.
  std::map<std::string, uint64_t> called;
};

struct WaitVerdict {
  std::string message;
  std::vector<int> ranks;  // whom it is about
  bool deadlock = false;   // else: left
  // The number at which each group of the verdict goes on: one above the highest that any member
  // called. Members that had not called it skip it, so that they agree again.
  std::map<std::string, uint64_t> resume_at;
};

class WaitBoard {
 public:
  // When a rank reports. Its text goes to the agent or the hub.
  static constexpr std::chrono::seconds kReportAfter{2};
  static constexpr std::chrono::seconds kSettle{1};

  void Report(const WaitReport& report, SteadyNanos now);
  void Withdraw(int rank);
  void Left(int rank);

  // Verdicts that are due. Each is returned once, and its ranks' reports are forgotten.
  std::vector<WaitVerdict> Decide(SteadyNanos now);
  // The members of `group` that have not called `sequence` and have said nothing: for the sentence
  // of a timeout.
  std::vector<int> Silent(const std::string& group, uint64_t sequence) const;

 private:
  struct Entry {
    WaitReport report;
    SteadyNanos since;
  };
  std::map<int, Entry> waiting_;
  std::map<int, bool> left_;
};

}  // namespace meshrun
