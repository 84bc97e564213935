// The reports of one rank's process as records of an event file. Pure.
//
// Each report gives a point of every number that it holds: "loss" and the metrics by their names.
// A report of a later step also gives what the host knows about the steps since the last one:
//
//   meshrun/step_seconds   time between two steps, on the host's clock
//   meshrun/waited_share   part of it in which the rank waited for others, where the rank says so
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/clock.h"
#include "meshrun/v1/common.pb.h"
#include "third_party/tensorboard/event.pb.h"

namespace meshrun::worker {

class RankCurve {
 public:
  // Curves of one process besides its loss; numbers of further names are passed over. A name that
  // holds a step, say, would take memory without an end.
  static constexpr size_t kMostTags = 64;

  // The first record of the file.
  static std::string Header(WallNanos now);

  // `report`: what came, without what earlier reports said, except the time of its step. A report
  // without a step belongs to the last step; before there is one, the reports are counted. Empty:
  // it holds no number that is not the last point of its curve (ReportReliably says the last step
  // again).
  std::string Add(const v1::Progress& report, WallNanos now);

 private:
  void AddPoint(const std::string& tag, double value, tensorboard::Event* event);

  std::optional<int64_t> step_;
  int64_t reports_without_step_ = 0;
  bool has_begun_ = false;
  // Step and value, by tag.
  std::map<std::string, std::pair<int64_t, uint64_t>> last_points_;
  // Taken from the last report with a later step.
  std::optional<int64_t> step_at_nanos_;
  std::optional<double> waited_seconds_;
};

}  // namespace meshrun::worker
