// The course of a job's progress, in a bounded number of points.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "meshrun/v1/job_service.pb.h"

namespace meshrun::coordinator {

// At first every report is a point. Whenever it is full every second point of each name goes, and
// from then on points of a name come half as often: so the loss and each metric cover the whole
// run, however often each is reported. It has kMostCurveMetrics metrics, by name where a report has
// several new ones. Not durable.
class Curve {
 public:
  static constexpr size_t kMostPoints = 256;

  // `report`: the values of its step alone. Adds nothing where it has no step, or repeats the last
  // point of each of its names.
  void Add(const v1::Progress& report, WallNanos at);
  // The last report becomes a point, however soon it came.
  void End();
  // Points that were added after the first `seen` of all.
  void Since(uint64_t seen, google::protobuf::RepeatedPtrField<v1::ProgressPoint>* out) const;
  // How many points were ever added.
  uint64_t added() const { return added_; }

 private:
  struct Point {
    uint64_t number = 0;
    WallNanos at{0};
    int64_t step = 0;
    // By index in series_.
    std::vector<std::pair<size_t, double>> values;
  };
  // The loss, or a metric.
  struct Series {
    std::string name;
    std::optional<int64_t> step;
    double value = 0;
    WallNanos at{0};
  };

  std::vector<std::pair<size_t, double>> ValuesOf(const v1::Progress& report);
  bool IsDue(WallNanos since, WallNanos at) const;
  void Append(Point point);
  void Thin();

  // The first is the loss.
  std::vector<Series> series_{1};
  std::vector<Point> points_;
  // The last report, where it came too soon to be a point.
  std::optional<Point> held_back_;
  uint64_t added_ = 0;
  WallNanos spacing_{0};
};

}  // namespace meshrun::coordinator
