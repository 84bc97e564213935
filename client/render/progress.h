// A job's progress as a bar or as a line. Pure: time is passed in.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "client/render/style.h"
#include "meshrun/v1/common.pb.h"

namespace meshrun::client {

class ProgressMeter {
 public:
  void Update(const v1::Progress& progress, std::chrono::nanoseconds now);
  // Forgets the rate: after a restart the steps begin earlier.
  void Restart() { samples_.clear(); }

  bool empty() const { return !has_any_; }
  // Steps per second over the last 15 s.
  std::optional<double> Rate() const;
  std::optional<std::chrono::seconds> Remaining() const;

  // "geoid ━━━━━━━━╸       40%  1200/3000  loss 0.0123  85 step/s  21s left", in fewer than
  // style.width columns: facts, counts, the end of the name and the bar go before the percentage.
  std::string Bar(const std::string& name, const Style& style) const;
  // "step 1200/3000 (40%), loss 0.0123, 85 step/s, 21s left".
  std::string Line() const;
  // For output that is not a terminal: true for the first report, then when 10 s have passed, or 1
  // s and another 10% are done, and at the end; never twice for one step. A true answer counts as
  // shown.
  bool LineDue(std::chrono::nanoseconds now);

 private:
  struct Sample {
    std::chrono::nanoseconds at;
    int64_t step;
  };
  std::optional<double> Fraction() const;
  std::vector<std::string> Facts() const;

  v1::Progress last_;
  bool has_any_ = false;
  std::deque<Sample> samples_;
  std::chrono::nanoseconds shown_at_{0};
  std::optional<int64_t> shown_step_;
  double shown_fraction_ = 0;
};

}  // namespace meshrun::client
