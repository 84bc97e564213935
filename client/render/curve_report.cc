#include "client/render/curve_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <set>
#include <vector>

#include "client/render/table.h"
#include "core/json/json.h"
#include "core/progress.h"
#include "core/proto_time.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

constexpr size_t kMostNamed = 8;

std::set<std::string> MetricNames(const CurvePoints& curve) {
  std::set<std::string> names;
  for (const v1::ProgressPoint& point : curve) {
    for (const auto& [name, value] : point.metrics()) names.insert(name);
  }
  return names;
}

// Time, step, loss and metrics of a point; `format` is that of the values.
std::vector<std::string> Cells(const v1::ProgressPoint& point, const std::set<std::string>& names,
                               const char* format) {
  // The sign of a NaN means nothing.
  const auto number = [format](double value) {
    return std::isnan(value) ? "nan" : fmt::format(fmt::runtime(format), value);
  };
  std::vector<std::string> cells = {JsonTime(FromProto(point.at())), std::to_string(point.step()),
                                    point.has_loss() ? number(point.loss()) : ""};
  for (const std::string& name : names) {
    const auto found = point.metrics().find(name);
    cells.push_back(found == point.metrics().end() ? "" : number(found->second));
  }
  return cells;
}

std::string Quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out.append(c == '"' ? 2 : 1, c);
  return out + '"';
}

std::string Line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) line += (&cell == cells.data() ? "" : ",") + Quoted(cell);
  return line + '\n';
}

}  // namespace

std::string CurveCsv(const CurvePoints& curve) {
  const std::set<std::string> names = MetricNames(curve);
  std::vector<std::string> titles = {"time", "step", "loss"};
  titles.insert(titles.end(), names.begin(), names.end());
  std::string text = Line(titles);
  for (const v1::ProgressPoint& point : curve) text += Line(Cells(point, names, "{}"));
  return text;
}

std::string CurveTable(const CurvePoints& curve, int width) {
  const std::set<std::string> names = MetricNames(curve);
  std::vector<std::string> titles = {"TIME", ">STEP", ">LOSS"};
  for (const std::string& name : names) titles.push_back(">" + EscapeControls(name));
  Table table(titles);
  for (const v1::ProgressPoint& point : curve) table.Add(Cells(point, names, "{:.6g}"));
  return table.Render(0, width);
}

std::string MissingPoints(const v1::Job& job, const CurvePoints& curve, WallNanos leads_since) {
  if (job.has_started_at() && FromProto(job.started_at()) < leads_since) {
    return fmt::format(
        "the coordinator that leads began at {}, and has no points of {} from before (files with "
        "all of them: --tensorboard)",
        JsonTime(leads_since), job.job_id());
  }
  return curve.empty() ? fmt::format("{} has reported no step", job.job_id()) : "";
}

std::string MetricsLeftOut(const v1::Job& job, const CurvePoints& curve) {
  const std::set<std::string> names = MetricNames(curve);
  std::set<std::string> left_out;
  for (const auto& [name, value] : job.progress().metrics()) {
    if (!names.contains(name)) left_out.insert(EscapeControls(name));
  }
  if (left_out.empty() || names.size() < kMostCurveMetrics) return "";
  std::vector<std::string> shown(left_out.begin(), left_out.end());
  const bool is_cut = shown.size() > kMostNamed;
  if (is_cut) shown.resize(kMostNamed);
  return fmt::format(
      "{} not in the curve, which has the first {} that were reported since this coordinator "
      "leads: {}{} (files with more of them: --tensorboard)",
      left_out.size() == 1 ? "1 metric is" : fmt::format("{} metrics are", left_out.size()),
      kMostCurveMetrics, fmt::join(shown, ", "), is_cut ? " and more" : "");
}

}  // namespace meshrun::client
