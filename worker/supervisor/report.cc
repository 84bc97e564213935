#include "worker/supervisor/report.h"

#include <fmt/format.h>

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
constexpr size_t kShownStep = 60;
constexpr auto Replace = Json::error_handler_t::replace;

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
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) < 9e18)) return std::nullopt;
  return static_cast<int64_t>(number);
}

// Steps, and how many there are.
std::optional<int64_t> StepNumber(const Json& value) {
  const std::optional<int64_t> number = Integer(value);
  return number && *number >= 0 ? number : std::nullopt;
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
      if (const auto step = StepNumber(value)) progress->set_step(*step);
    } else if (name == "total_steps") {
      if (const auto total = StepNumber(value)) progress->set_total_steps(*total);
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

std::string MergeReport(std::string_view datagram, v1::Progress* progress, v1::Progress* alone) {
  Json report = Json::parse(datagram, nullptr, /*allow_exceptions=*/false);
  if (report.is_discarded()) {
    report = Json::parse(QuoteNonFinite(datagram), nullptr, /*allow_exceptions=*/false);
  }
  if (!report.is_object()) {
    return fmt::format("its {} bytes are not a JSON object", datagram.size());
  }
  // Its values would be another step's.
  const auto step = report.find("step");
  if (step != report.end() && !step->is_null() && !StepNumber(*step)) {
    return fmt::format("its step {} is not a number from 0 to 2^63 - 1",
                       Utf8Prefix(ReplaceBytes(step->dump(-1, ' ', true, Replace)), kShownStep));
  }
  Merge(report, progress);
  if (alone != nullptr) Merge(report, alone);
  return "";
}

void KeepStep(v1::StepTime step, std::deque<v1::StepTime>* steps) {
  steps->push_back(std::move(step));
  if (steps->size() > kMostSteps) steps->pop_front();
}

}  // namespace meshrun::worker
