#include "worker/event_files/rank_curve.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "worker/event_files/event_record.h"

namespace meshrun::worker {
namespace {

constexpr const char* kLoss = "loss";

tensorboard::Event At(WallNanos now, int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(std::chrono::duration<double>(now).count());
  event.set_step(step);
  return event;
}

void AddValue(const std::string& tag, double value, tensorboard::Event* event) {
  tensorboard::Summary::Value& out = *event->mutable_summary()->add_value();
  out.set_tag(tag);
  out.set_simple_value(static_cast<float>(value));
}

}  // namespace

std::string RankCurve::Header(WallNanos now) {
  tensorboard::Event event = At(now, 0);
  event.set_file_version("brain.Event:2");
  return EventRecord(event);
}

void RankCurve::AddPoint(const std::string& tag, double value, tensorboard::Event* event) {
  if (tag != kLoss && !last_points_.contains(tag)) {
    const size_t others = last_points_.size() - last_points_.count(kLoss);
    if (others >= kMostTags) return;
  }
  // As bits: NaN is not equal to itself.
  const std::pair point = {event->step(), std::bit_cast<uint64_t>(value)};
  const auto [last, is_new] = last_points_.try_emplace(tag, point);
  if (!is_new && std::exchange(last->second, point) == point) return;
  AddValue(tag, value, event);
}

std::string RankCurve::Add(const v1::Progress& report, WallNanos now) {
  if (!report.has_step() && !step_) ++reports_without_step_;
  const int64_t steps = report.has_step() && step_ ? report.step() - *step_ : 0;
  if (report.has_step()) step_ = report.step();

  tensorboard::Event event = At(now, step_.value_or(reports_without_step_));
  if (report.has_loss()) AddPoint(kLoss, report.loss(), &event);
  // The map has no order: the first kMostTags are the same ones wherever it is read.
  const std::map<std::string, double> metrics(report.metrics().begin(), report.metrics().end());
  for (const auto& [name, value] : metrics) AddPoint(name, value, &event);
  if (report.has_step_at_nanos() && (!step_at_nanos_ || steps != 0)) {
    if (steps > 0 && step_at_nanos_) {
      const double seconds = static_cast<double>(report.step_at_nanos() - *step_at_nanos_) * 1e-9;
      AddValue("meshrun/step_seconds", seconds / static_cast<double>(steps), &event);
      if (report.has_waited_seconds() && waited_seconds_ && seconds > 0) {
        const double waited = report.waited_seconds() - *waited_seconds_;
        // A total that falls has begun anew: what was waited meanwhile is not known.
        if (waited >= 0) AddValue("meshrun/waited_share", std::min(waited / seconds, 1.0), &event);
      }
    }
    step_at_nanos_ = report.step_at_nanos();
    waited_seconds_.reset();
    if (report.has_waited_seconds()) waited_seconds_ = report.waited_seconds();
  }
  if (!event.has_summary()) return "";

  std::string records;
  if (!has_begun_) {
    has_begun_ = true;
    tensorboard::Event start = At(now, event.step());
    start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    records = EventRecord(start);
  }
  return records + EventRecord(event);
}

}  // namespace meshrun::worker
