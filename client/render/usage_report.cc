#include "client/render/usage_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/render/report.h"
#include "client/render/table.h"
#include "core/proto_time.h"
#include "core/signal_name.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::client {
namespace {

constexpr size_t kTextWidth = 100;

std::string Hours(double seconds) { return fmt::format("{:.2f}", seconds / 3600); }

std::string Exit(const v1::UsageRecord& record) {
  if (record.signal() != 0) return SignalName(record.signal());
  return record.exit_code() == 0 ? "" : fmt::to_string(record.exit_code());
}

std::string UtcTime(bool is_set, const google::protobuf::Timestamp& at) {
  if (!is_set) return "";
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::FromUnixNanos(FromProto(at).count()),
                          absl::UTCTimeZone());
}

// RFC 4180. A text that a spreadsheet would take for a formula is one for nobody.
std::string Cell(std::string_view text) {
  std::string out = EscapeControls(text);
  if (!out.empty() && std::string_view("=+-@").find(out.front()) != std::string_view::npos)
    out.insert(out.begin(), '\'');
  if (out.find_first_of(",\"") == std::string::npos) return out;
  std::string quoted = "\"";
  for (const char c : out) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

const std::string& KeyOf(const v1::UsageRecord& record, std::string_view by) {
  if (by == "account") return record.account();
  return by == "partition" ? record.partition() : record.user();
}

}  // namespace

std::string UsageSums(const v1::ListUsageResponse& usage, const std::string& by, int width) {
  struct Sum {
    size_t jobs = 0;
    size_t failed = 0;
    double cpu_seconds = 0;
    double gpu_seconds = 0;
  };
  std::map<std::string, Sum> by_key;
  for (const v1::UsageRecord& record : usage.records()) {
    Sum& sum = by_key[KeyOf(record, by)];
    ++sum.jobs;
    sum.failed += record.state() == v1::JOB_STATE_FAILED;
    sum.cpu_seconds += record.cpu_seconds();
    sum.gpu_seconds += record.gpu_seconds();
  }
  std::vector<std::pair<std::string, Sum>> sums(by_key.begin(), by_key.end());
  std::stable_sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) {
    return a.second.cpu_seconds > b.second.cpu_seconds;
  });
  std::string heading = by;
  std::transform(heading.begin(), heading.end(), heading.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  Table table({heading, ">JOBS", ">FAILED", ">CPU HOURS", ">GPU HOURS"});
  for (const auto& [key, sum] : sums) {
    table.Add({key.empty() ? "-" : key, fmt::to_string(sum.jobs), fmt::to_string(sum.failed),
               Hours(sum.cpu_seconds), Hours(sum.gpu_seconds)});
  }
  return table.Render(0, width);
}

std::string UsageOfJobs(const v1::ListUsageResponse& usage, int width) {
  Table table({"JOB", "USER", "~ACCOUNT", "STATE", "~ENDED", ">CPU HOURS", ">GPU HOURS", "~EXIT",
               "REASON"});
  for (const v1::UsageRecord& record : usage.records()) {
    table.Add({record.job_id(), record.user(), record.account(), StateName(record.state()),
               AbsoluteTime(FromProto(record.finished_at())), Hours(record.cpu_seconds()),
               Hours(record.gpu_seconds()), Exit(record), OneLine(record.reason(), kTextWidth)});
  }
  return table.Render(0, width);
}

std::string UsageCsv(const v1::ListUsageResponse& usage) {
  std::string out =
      "sequence,job_id,name,user,account,partition,state,exit_code,signal,submitted_at,started_at,"
      "finished_at,cpu_seconds,gpu_seconds,ranks,restarts,private,reason\r\n";
  for (const v1::UsageRecord& r : usage.records()) {
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{:.3f},{:.3f},{},{},{},{}\r\n",
                       r.sequence(), Cell(r.job_id()), Cell(r.name()), Cell(r.user()),
                       Cell(r.account()), Cell(r.partition()), StateName(r.state()), r.exit_code(),
                       r.signal(), UtcTime(r.has_submitted_at(), r.submitted_at()),
                       UtcTime(r.has_started_at(), r.started_at()),
                       UtcTime(r.has_finished_at(), r.finished_at()), r.cpu_seconds(),
                       r.gpu_seconds(), r.ranks(), r.restarts(), r.private_(), Cell(r.reason()));
  }
  return out;
}

std::string AuditTable(const v1::ListAuditResponse& audit, int width) {
  Table table({">NUMBER", "AT", "WHO", "~FROM", "~CERTIFICATE", "WHAT", "OF", "RESULT"});
  for (const v1::AuditRecord& record : audit.records()) {
    std::string what = record.method();
    if (!record.request().empty()) what += " " + record.request();
    std::string result = record.code() == 0 ? "ok" : OneLine(record.message(), kTextWidth);
    if (record.not_recorded() > 0)
      result += fmt::format(" (and {} before it)", record.not_recorded());
    table.Add({fmt::to_string(record.sequence()), AbsoluteTime(FromProto(record.at())),
               record.actor(), record.peer(), record.certificate(), what, record.target(),
               std::move(result)});
  }
  return table.Render(0, width);
}

}  // namespace meshrun::client
