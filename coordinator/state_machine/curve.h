// The course of a job's progress, in a bounded number of points.
#pragma once

#include <string>
#include <vector>

#include "core/clock.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {

// At first every report is a point. Whenever it is full every second point goes, and from then on
// points come half as often: so it covers the whole run. Not durable.
class Curve {
 public:
  static constexpr size_t kMostPoints = 256;
  static constexpr size_t kMostMetrics = 8;

  // A report without a step, or with the same step as the last one, adds nothing. `is_last`: it is
  // a point however soon it comes.
  void Add(const v1::Progress& progress, WallNanos at, bool is_last = false);
  // Points that were added after the first `seen` of all.
  void Since(uint64_t seen, google::protobuf::RepeatedPtrField<v1::ProgressPoint>* out) const;
  // How many points were ever added.
  uint64_t added() const { return added_; }

 private:
  struct Point {
    uint64_t number = 0;
    WallNanos at{0};
    int64_t step = 0;
    // The loss, then the metrics in the order of names_; NaN where a report had none.
    std::vector<double> values;
  };

  std::vector<std::string> names_;
  std::vector<Point> points_;
  uint64_t added_ = 0;
  WallNanos spacing_{0};
};

}  // namespace meshrun::coordinator
