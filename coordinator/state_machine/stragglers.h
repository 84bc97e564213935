// Ranks that compute for longer than the others, which wait for them.
//
// Ranks that take their steps together report steps of one length, whoever is slow. So each report
// says for how long its rank has waited for others (Progress.waited_seconds): what is left of a
// step is what the rank computes. A rank that waits is fast, and never accused. Where no rank says
// how long it waits, the lengths of the steps alone are compared; where some do, the others are not
// judged. Nor is a rank judged, or compared with, that says it has waited for longer than its steps
// took: a program may count a moment twice, or on threads beside the training.
//
// A window ends when each rank that reports has done kSteps steps, and kLeast has passed. A rank is
// slow in a window if its compute time exceeds the median of all ranks by more than each of these:
// half of the median, six standard deviations (estimated from the median deviation), a fifth of the
// step, and kFloorSeconds. Where the median is 0 nobody is judged: most do nothing but wait, so no
// pace is to be kept. kWindows slow windows in a row name the rank, and as many other windows in a
// row clear it. Both are events, and Job.stragglers lists the named ranks. All times come from the
// clock of the rank's own host.
//
// None of this is durable, except the names: after a restart of the coordinator windows begin anew.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/state_machine/hangs.h"
#include "coordinator/state_machine/jobs.h"

namespace meshrun::coordinator {

class Stragglers {
 public:
  static constexpr int64_t kSteps = 5;
  static constexpr std::chrono::seconds kLeast{1};
  static constexpr int kWindows = 3;
  // By how much a slow rank exceeds the median, as factors of the median, of the median deviation
  // and of the step.
  static constexpr double kOfMedian = 0.5;
  static constexpr double kOfDeviation = 6 * 1.4826;
  static constexpr double kOfStep = 0.2;
  static constexpr double kFloorSeconds = 0.001;
  // Share of the time of the steps by which the waits may exceed it, since a total is read a moment
  // before the step's time.
  static constexpr double kBeyond = 0.05;

  Stragglers(Context& context, JobTable& jobs) : context_(context), jobs_(jobs) {}

  // Ranks of a running job have reported.
  void OnProgress(const StepChange& change);

 private:
  struct Sample {
    int64_t step = 0;
    double at = 0;  // seconds
    std::optional<double> waited;
  };
  struct Rank {
    // First sample of the window; absent: the rank has not reported.
    std::optional<Sample> first;
    Sample last;
    int slow = 0;
    int fine = 0;
    bool named = false;
  };
  struct Watch {
    uint64_t generation = 0;
    SteadyNanos began{0};
    std::vector<Rank> ranks;
    // Ranks that have reported, and those of them that have done their steps of the window.
    size_t reporting = 0;
    size_t done = 0;
  };
  // What a rank did in a window, per step.
  struct Pace {
    int rank = 0;
    double computes = 0;
    double step = 0;
  };

  Watch& WatchOf(const Job& job);
  void Add(Watch& watch, int rank, const v1::Progress& progress);
  static bool IsDone(const Rank& rank) {
    return rank.first.has_value() && rank.last.step - rank.first->step >= kSteps;
  }
  std::vector<Pace> Paces(const Watch& watch) const;
  void Judge(Job& job, Watch& watch);
  void Tell(Job& job, const std::vector<Pace>& found, double median, double step);

  Context& context_;
  JobTable& jobs_;
  std::map<std::string, Watch> watches_;
};

}  // namespace meshrun::coordinator
