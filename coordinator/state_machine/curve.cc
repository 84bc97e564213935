#include "coordinator/state_machine/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/proto_time.h"

namespace meshrun::coordinator {

void Curve::Add(const v1::Progress& progress, WallNanos at, bool is_last) {
  if (!progress.has_step()) return;
  if (!points_.empty()) {
    const Point& last = points_.back();
    // The wall clock may be set back.
    const bool too_soon = !is_last && at >= last.at && at - last.at < spacing_;
    if (progress.step() == last.step || too_soon) return;
  }
  for (const auto& [name, value] : progress.metrics()) {
    const bool known = std::find(names_.begin(), names_.end(), name) != names_.end();
    if (!known && names_.size() < kMostMetrics) names_.push_back(name);
  }
  if (points_.size() == kMostPoints) {
    for (size_t i = 1; i < kMostPoints / 2; ++i) points_[i] = std::move(points_[2 * i]);
    points_.resize(kMostPoints / 2);
    const WallNanos span = points_.back().at - points_.front().at;
    spacing_ = std::max(2 * spacing_, 2 * span / static_cast<int64_t>(kMostPoints));
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  Point& point = points_.emplace_back(Point{++added_, at, progress.step(), {}});
  point.values.push_back(progress.has_loss() ? progress.loss() : kNone);
  for (const std::string& name : names_) {
    const auto found = progress.metrics().find(name);
    point.values.push_back(found == progress.metrics().end() ? kNone : found->second);
  }
}

void Curve::Since(uint64_t seen, google::protobuf::RepeatedPtrField<v1::ProgressPoint>* out) const {
  for (const Point& point : points_) {
    if (point.number <= seen) continue;
    v1::ProgressPoint& to = *out->Add();
    *to.mutable_at() = ToProtoTimestamp(point.at);
    to.set_step(point.step);
    if (!std::isnan(point.values[0])) to.set_loss(point.values[0]);
    for (size_t i = 1; i < point.values.size(); ++i) {
      if (!std::isnan(point.values[i])) (*to.mutable_metrics())[names_[i - 1]] = point.values[i];
    }
  }
}

}  // namespace meshrun::coordinator
