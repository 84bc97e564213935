// Jobs whose steps have stopped, by the reports of their ranks.
//
// The limit adapts to the job: ten times the longest time between two reports of a new step, and at
// least kFloor. A new step is a higher one, or a lower one of the same rank, because some programs
// count from 0 in each epoch. JobSpec.hang_timeout replaces the limit, from the first reported step
// on; 0 means that the job is not watched. Without it a job is not watched before it has reported
// three steps in a generation. No job is watched after its last step; with hang_timeout, after the
// last step of each rank that runs and reports. At the limit people are told
// which rank stands still and which ranks wait for it, and every host dumps the state of its ranks
// and uploads where they stand, which people are told too. After that the generation fails if the
// job has restarts or has set hang_timeout; otherwise it is left alone.
//
// The job's record keeps only the longest time, rounded up. So after a restart of the coordinator
// the job is watched from its first report on, with less than twice its limit.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state_machine/blocked_ranks.h"
#include "coordinator/state_machine/deadline_index.h"
#include "coordinator/state_machine/jobs.h"
#include "coordinator/state_machine/nodes.h"
#include "meshrun/v1/stack.pb.h"

namespace meshrun::coordinator {

// What a report of a running job has changed.
struct StepChange {
  Job* job = nullptr;
  // The highest step among the ranks whose step has changed; -1: no rank's step has.
  int64_t highest = -1;
  // The step of a rank is lower than before: it counts anew.
  bool fell = false;
  // That have reported.
  std::vector<int> ranks;
};

class Hangs {
 public:
  static constexpr std::chrono::minutes kFloor{2};
  static constexpr int kTimesLongest = 10;
  // For dumps, before anything is killed.
  static constexpr std::chrono::seconds kDumpTime{10};
  // People are told where the ranks stand, as far as it is known by then.
  static constexpr std::chrono::seconds kStackTime{4};
  // Number of the request in Dump, which no call has.
  static constexpr uint64_t kRequest = uint64_t{1} << 63;

  Hangs(Context& context, NodeTable& nodes, JobTable& jobs, BlockedRanks& blocked)
      : context_(context), nodes_(nodes), jobs_(jobs), blocked_(blocked) {}

  // Some rank of a running job has reported.
  void OnProgress(const StepChange& change);

  // Where a rank stands, as Dump has asked.
  void Upload(uint64_t call_id, const v1::UploadStackRequest& request);

  struct Verdict {
    Job* job = nullptr;
    int rank = -1;
    std::string message;
  };
  // The next job whose generation is to fail; absent when there is none.
  std::optional<Verdict> NextHung();
  std::optional<SteadyNanos> NextDeadline() const { return deadlines_.Next(); }
  // The coordinator itself stood still.
  void Postpone();

 private:
  // What is known of a job whose limit is over.
  struct Suspicion {
    SteadyNanos at{0};
    // What people were told then.
    std::string text;
    // kStackTime is over.
    bool told = false;
    // Ranks whose place was asked for, and the places that have come.
    std::set<int> missing;
    std::map<int, std::string> places;
    // By rank: the reason why its place is not known.
    std::map<int, std::string> problems;
  };
  struct Watch {
    uint64_t generation = 0;
    int64_t step = -1;
    SteadyNanos at{0};
    int intervals = 0;
    std::chrono::nanoseconds longest{0};
    std::optional<Suspicion> suspicion;
  };
  void KeepLongest(Job& job, const Watch& watch);
  // When it began to wait for the next step: a pause does not count.
  static SteadyNanos WaitsSince(const Job& job, const Watch& watch);
  // Absent: not watched.
  std::optional<std::chrono::nanoseconds> Limit(const Job& job, const Watch& watch) const;
  // True: its ranks are paused, or were until lately. It is looked at again later.
  bool PutOff(Job& job, Watch& watch);
  void Suspect(Job& job, Watch& watch);
  // Tells people the places that are known, and why others are not.
  void TellPlaces(Job& job, const Suspicion& suspicion);
  void SetHang(Job& job, std::string text);
  // The rank to blame, or -1, and a sentence.
  std::pair<int, std::string> Evidence(const Job& job, const Watch& watch) const;

  Context& context_;
  NodeTable& nodes_;
  JobTable& jobs_;
  BlockedRanks& blocked_;
  std::map<std::string, Watch> watches_;
  DeadlineIndex<std::string> deadlines_;
};

}  // namespace meshrun::coordinator
