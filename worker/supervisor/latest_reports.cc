#include "worker/supervisor/latest_reports.h"

#include <algorithm>
#include <utility>

namespace meshrun::worker {
namespace {

// What is not of a step, and the step itself.
v1::Progress WithoutValues(v1::Progress whole) {
  whole.clear_loss();
  whole.clear_metrics();
  return whole;
}

bool IsOfSameStep(const v1::Progress& a, const v1::Progress& b) {
  return a.has_step() == b.has_step() && a.step() == b.step();
}

}  // namespace

void LatestReports::Add(const v1::Progress& report, const v1::Progress& whole) {
  v1::Progress values = WithoutValues(whole);
  if (!steps_.empty() && IsOfSameStep(steps_.back().values, whole)) {
    const v1::Progress& before = steps_.back().values;
    if (before.has_loss()) values.set_loss(before.loss());
    *values.mutable_metrics() = before.metrics();
    steps_.pop_back();
  }
  if (report.has_loss()) values.set_loss(report.loss());
  for (const auto& [name, value] : report.metrics()) {
    if (whole.metrics().contains(name)) (*values.mutable_metrics())[name] = value;
  }
  steps_.push_back({std::move(values)});

  for (auto step = steps_.begin(); step != steps_.end() - 1;) {
    const auto is_said_later = [&](const auto& has) {
      return std::any_of(step + 1, steps_.end(),
                         [&](const Step& later) { return has(later.values); });
    };
    const auto& metrics = step->values.metrics();
    const bool is_needed =
        (step->values.has_loss() &&
         !is_said_later([](const v1::Progress& later) { return later.has_loss(); })) ||
        std::any_of(metrics.begin(), metrics.end(), [&](const auto& metric) {
          return !is_said_later(
              [&](const v1::Progress& later) { return later.metrics().contains(metric.first); });
        });
    step = is_needed ? step + 1 : steps_.erase(step);
  }
}

bool LatestReports::has_unsent() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) { return step.unsent; });
}

std::vector<v1::Progress> LatestReports::TakeUnsent() {
  std::vector<v1::Progress> out;
  for (Step& step : steps_) {
    if (std::exchange(step.unsent, false)) out.push_back(step.values);
  }
  return out;
}

void LatestReports::OfferAgain() {
  for (Step& step : steps_) step.unsent = true;
}

}  // namespace meshrun::worker
