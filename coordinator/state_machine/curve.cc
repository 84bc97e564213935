#include "coordinator/state_machine/curve.h"

#include <algorithm>
#include <bit>
#include <set>

#include "core/progress.h"
#include "core/proto_time.h"

namespace meshrun::coordinator {
namespace {

// NaN is not equal to itself.
bool IsSame(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

}  // namespace

std::vector<std::pair<size_t, double>> Curve::ValuesOf(const v1::Progress& report) {
  std::vector<std::pair<size_t, double>> values;
  if (report.has_loss()) values.emplace_back(0, report.loss());
  // The map has no order.
  std::set<std::string> names;
  for (const auto& [name, value] : report.metrics()) names.insert(name);
  for (const std::string& name : names) {
    auto found = std::find_if(series_.begin() + 1, series_.end(),
                              [&](const Series& series) { return series.name == name; });
    if (found == series_.end()) {
      if (series_.size() > kMostCurveMetrics) continue;
      found = series_.insert(found, Series{.name = name});
    }
    values.emplace_back(found - series_.begin(), report.metrics().at(name));
  }
  return values;
}

// The wall clock may be set back.
bool Curve::IsDue(WallNanos since, WallNanos at) const {
  return at < since || at - since >= spacing_;
}

void Curve::Add(const v1::Progress& report, WallNanos at) {
  if (!report.has_step()) return;
  Point point{0, at, report.step(), ValuesOf(report)};
  const bool is_empty = point.values.empty();
  // What has come before is there already.
  std::erase_if(point.values, [&](const auto& value) {
    const Series& series = series_[value.first];
    return series.step == point.step && IsSame(series.value, value.second);
  });
  const Point* const last = held_back_ ? &*held_back_ : points_.empty() ? nullptr : &points_.back();
  const bool continues = last != nullptr && last->step == point.step;
  if (point.values.empty() && (!is_empty || continues)) return;
  if (held_back_ && continues) {
    for (const auto& value : held_back_->values) {
      const bool is_said_anew =
          std::any_of(point.values.begin(), point.values.end(),
                      [&](const auto& other) { return other.first == value.first; });
      if (!is_said_anew) point.values.push_back(value);
    }
  }
  bool is_due = point.values.empty() && (points_.empty() || IsDue(points_.back().at, at));
  for (const auto& [index, value] : point.values) {
    const Series& series = series_[index];
    is_due = is_due || !series.step || IsDue(series.at, at);
  }
  if (!is_due) {
    held_back_ = std::move(point);
    return;
  }
  Append(std::move(point));
}

void Curve::End() {
  if (held_back_) Append(*std::exchange(held_back_, std::nullopt));
}

void Curve::Append(Point point) {
  held_back_.reset();
  for (const auto& [index, value] : point.values) {
    series_[index].step = point.step;
    series_[index].value = value;
    series_[index].at = point.at;
  }
  if (points_.size() == kMostPoints) Thin();
  point.number = ++added_;
  points_.push_back(std::move(point));
}

void Curve::Thin() {
  const WallNanos span = points_.back().at - points_.front().at;
  // Whether the last point of each series was kept; behind them, of points without values.
  std::vector<bool> kept(series_.size() + 1, false);
  std::erase_if(points_, [&](const Point& point) {
    bool keep = point.values.empty() && !kept.back();
    for (const auto& [index, value] : point.values) keep = keep || !kept[index];
    if (point.values.empty()) kept.back() = keep;
    for (const auto& [index, value] : point.values) kept[index] = keep;
    return !keep;
  });
  spacing_ = std::max(2 * spacing_, 2 * span / static_cast<int64_t>(kMostPoints));
}

void Curve::Since(uint64_t seen, google::protobuf::RepeatedPtrField<v1::ProgressPoint>* out) const {
  for (const Point& point : points_) {
    if (point.number <= seen) continue;
    v1::ProgressPoint& to = *out->Add();
    *to.mutable_at() = ToProtoTimestamp(point.at);
    to.set_step(point.step);
    for (const auto& [index, value] : point.values) {
      if (index == 0) {
        to.set_loss(value);
      } else {
        (*to.mutable_metrics())[series_[index].name] = value;
      }
    }
  }
}

}  // namespace meshrun::coordinator
