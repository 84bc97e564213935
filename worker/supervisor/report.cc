#include "worker/supervisor/report.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/utf8.h"

namespace meshrun::worker {
namespace {

using Json = nlohmann::json;

constexpr int kMostMetrics = 64;
constexpr size_t kLongestName = 64;
constexpr size_t kLongestNote = 512;

// JSON has no NaN and no infinities, but json.dumps writes them: as strings they pass the parser.
std::string QuoteNonFinite(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      out += c;
      if (c == '\\' && i + 1 < text.size()) out += text[++i];
      in_string = c != '"';
      continue;
    }
    bool replaced = false;
    for (const std::string_view token : {"NaN", "Infinity", "-Infinity"}) {
      if (!text.substr(i).starts_with(token)) continue;
      out.append("\"").append(token).append("\"");
      i += token.size() - 1;
      replaced = true;
      break;
    }
    if (replaced) continue;
    out += c;
    in_string = c == '"';
  }
  return out;
}

std::optional<double> Number(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

std::optional<int64_t> Integer(const Json& value) {
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) < 9e18)) return std::nullopt;
  return static_cast<int64_t>(number);
}

// What only grows.
std::optional<double> Total(const Json& value) {
  const std::optional<double> number = Number(value);
  if (!number || !(*number >= 0 && *number < 1e18)) return std::nullopt;
  return number;
}

void SetMetric(const std::string& name, const Json& value, v1::Progress* progress) {
  const std::optional<double> number = Number(value);
  if (!number || name.size() > kLongestName) return;
  auto& metrics = *progress->mutable_metrics();
  if (metrics.size() >= kMostMetrics && !metrics.contains(name)) return;
  metrics[name] = *number;
}

void Merge(const Json& report, v1::Progress* progress) {
  for (const auto& [name, value] : report.items()) {
    if (name == "step") {
      if (const auto step = Integer(value)) progress->set_step(*step);
    } else if (name == "total_steps") {
      if (const auto total = Integer(value)) progress->set_total_steps(*total);
    } else if (name == "loss") {
      if (const auto loss = Number(value)) progress->set_loss(*loss);
    } else if (name == "waited_seconds") {
      if (const auto waited = Total(value)) progress->set_waited_seconds(*waited);
    } else if (name == "samples") {
      if (const auto samples = Total(value)) progress->set_samples(*samples);
    } else if (name == "data_seconds") {
      if (const auto seconds = Total(value)) progress->set_data_seconds(*seconds);
    } else if (name == "collective_bytes") {
      if (const auto bytes = Total(value))
        progress->set_collective_bytes(static_cast<uint64_t>(*bytes));
    } else if (name == "note") {
      if (value.is_string())
        progress->set_note(ReplaceBytes(value.get<std::string>().substr(0, kLongestNote)));
    } else if (name == "metrics" && value.is_object()) {
      for (const auto& [metric, number] : value.items()) SetMetric(metric, number, progress);
    } else {
      SetMetric(name, value, progress);
    }
  }
}

}  // namespace

bool MergeReport(std::string_view datagram, v1::Progress* progress, v1::Progress* alone) {
  Json report = Json::parse(datagram, nullptr, /*allow_exceptions=*/false);
  if (report.is_discarded()) {
    report = Json::parse(QuoteNonFinite(datagram), nullptr, /*allow_exceptions=*/false);
  }
  if (!report.is_object()) return false;
  Merge(report, progress);
  if (alone != nullptr) Merge(report, alone);
  return true;
}

void KeepStep(v1::StepTime step, std::deque<v1::StepTime>* steps) {
  steps->push_back(std::move(step));
  if (steps->size() > kMostSteps) steps->pop_front();
}

void MergeProgress(const v1::Progress& update, v1::Progress* progress) {
  if (update.has_step()) {
    progress->set_step(update.step());
    progress->clear_step_at_nanos();
    if (update.has_step_at_nanos()) progress->set_step_at_nanos(update.step_at_nanos());
  }
  if (update.has_waited_seconds()) progress->set_waited_seconds(update.waited_seconds());
  if (update.has_samples()) progress->set_samples(update.samples());
  if (update.has_data_seconds()) progress->set_data_seconds(update.data_seconds());
  if (update.has_collective_bytes()) progress->set_collective_bytes(update.collective_bytes());
  if (update.has_total_steps()) progress->set_total_steps(update.total_steps());
  if (update.has_loss()) progress->set_loss(update.loss());
  if (!update.note().empty()) progress->set_note(update.note());
  for (const auto& [name, value] : update.metrics()) (*progress->mutable_metrics())[name] = value;
}

}  // namespace meshrun::worker
