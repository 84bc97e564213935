// A job's progress as a bar or as a line. Pure: time is passed in.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "client/render/style.h"
#include "meshrun/v1/common.pb.h"
#include "meshrun/v1/job.pb.h"

namespace meshrun::client {

// How far a job is, 0 to 1; absent: it does not say how many steps there are. The page has the same
// (coordinator/page/model/rate.js).
std::optional<double> FractionOf(const v1::Progress& progress);
// Rounded down, so that 100 % is the end.
int WholePercent(double fraction);

class ProgressMeter {
 public:
  // A report that has just come.
  void Update(const v1::Progress& progress, std::chrono::nanoseconds now);
  // What is known at the first look at a job: nobody knows since when, and it has no part in the
  // rate.
  void Look(const v1::Progress& progress);
  // The same of a job. One that does not run, hangs, or is paused has neither a rate nor a time
  // left, and that time is not in the rate later. Nor is that before a restart.
  void Update(const v1::Job& job, std::chrono::nanoseconds now);
  void Look(const v1::Job& job);

  bool empty() const { return !has_any_; }
  // Steps per second over the last 15 s; where steps take longer than that, between the last two
  // reports. Absent as well once steps have stopped: the last is as old as five of the longest
  // intervals, and at least 15 s.
  std::optional<double> Rate(std::chrono::nanoseconds now) const;
  // Absent where no step is left, too.
  std::optional<std::chrono::seconds> Remaining(std::chrono::nanoseconds now) const;

  // "geoid ━━━━━━━━╸       40%  1200/3000  loss 0.0123  85 step/s  21s left", in fewer than
  // style.width columns: facts, counts, the end of the name and the bar go before the percentage.
  std::string Bar(const std::string& name, const Style& style, std::chrono::nanoseconds now) const;
  // "step 1200/3000 (40%), loss 0.0123, 85 step/s, 21s left".
  std::string Line(std::chrono::nanoseconds now) const;
  // For output that is not a terminal: true for the first report, then when 10 s have passed, or 1
  // s and another 10% are done, and at the end; never twice for one step. A true answer counts as
  // shown.
  bool LineDue(std::chrono::nanoseconds now);

 private:
  struct Sample {
    std::chrono::nanoseconds at;
    int64_t step;
  };
  void TakeState(const v1::Job& job);
  // True: the report says something.
  bool Take(const v1::Progress& progress);
  // The last step is older than a job that makes steps lets it become.
  bool IsIdle(std::chrono::nanoseconds now) const;
  std::vector<std::string> Facts(std::chrono::nanoseconds now) const;

  v1::Progress last_;
  bool has_any_ = false;
  bool makes_steps_ = true;
  std::optional<uint64_t> generation_;
  // Newest step of all reports and looks, of which the last sample may be older.
  std::optional<int64_t> step_;
  std::deque<Sample> samples_;
  std::chrono::nanoseconds shown_at_{0};
  std::optional<int64_t> shown_step_;
  double shown_fraction_ = 0;
};

}  // namespace meshrun::client
