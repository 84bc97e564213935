#include "parallel/comm/ucx/engine/execution/flight_recorder.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "parallel/comm/interface/call_scope.h"

namespace meshrun::ucx {
namespace {

std::span<const int64_t> shape_of(const FlightRecord& record) {
  return {record.shape.data(), std::min<size_t>(record.ndim, FlightRecord::kSizes)};
}

std::span<const int64_t> sizes_of(const FlightRecord& record) {
  const int listed = std::clamp(record.size_count, 0, FlightRecord::kSizes);
  return {record.sizes.data(), static_cast<size_t>(listed)};
}

// Milliseconds on the steady clock: comparable within a process.
double milliseconds(SteadyNanos time) { return static_cast<double>(time.count()) / 1e6; }

nlohmann::ordered_json json_of(const FlightRecord& record) {
  nlohmann::ordered_json json;
  json["sequence"] = record.sequence;
  json["operation"] = called(record);
  json["state"] = name_of(record.state);
  json["dtype"] = name_of(record.dtype);
  json["shape"] = shape_of(record);
  if (record.size_count > 0) json["sizes"] = sizes_of(record);
  if (record.size_count > FlightRecord::kSizes) json["size_count"] = record.size_count;
  if (record.peer >= 0) json["peer"] = record.peer;
  json["bytes"] = record.bytes;
  json["submitted_ms"] = milliseconds(record.submitted);
  if (record.checked.count() > 0) json["checked_ms"] = milliseconds(record.checked);
  if (record.finished.count() > 0) json["finished_ms"] = milliseconds(record.finished);
  return json;
}

}  // namespace

const char* name_of(OperationState state) {
  switch (state) {
    case OperationState::kQueued:
      return "queued";
    case OperationState::kConnecting:
      return "connecting";
    case OperationState::kChecking:
      return "checking";
    case OperationState::kMoving:
      return "moving";
    case OperationState::kDone:
      return "done";
    case OperationState::kFailed:
      return "failed";
  }
  return "unknown";
}

FlightRecorder::FlightRecorder(std::string group_name) : group_name_(std::move(group_name)) {
  ring_.reserve(kRecords);
}

uint64_t FlightRecorder::put(const FlightRecord& record) {
  MutexLock lock(mu_);
  if (count_ < kRecords) {
    ring_.push_back(record);
  } else {
    ring_[count_ % kRecords] = record;
  }
  return count_++;
}

void FlightRecorder::advance(uint64_t ticket, OperationState state, SteadyNanos now) {
  MutexLock lock(mu_);
  if (count_ - ticket > kRecords) return;
  FlightRecord& record = ring_[ticket % kRecords];
  record.state = state;
  if (state == OperationState::kMoving) record.checked = now;
  if (state >= OperationState::kDone) record.finished = now;
}

std::vector<FlightRecord> FlightRecorder::records(int most) const {
  const auto wanted = static_cast<uint64_t>(most > 0 ? std::min(most, kRecords) : kShown);
  MutexLock lock(mu_);
  std::vector<FlightRecord> records;
  for (uint64_t i = count_ - std::min(count_, wanted); i < count_; ++i) {
    records.push_back(ring_[i % kRecords]);
  }
  return records;
}

std::string FlightRecorder::to_json() const { return ucx::to_json(group_name_, records()); }

std::string to_json(const std::string& group_name, const std::vector<FlightRecord>& records) {
  nlohmann::ordered_json json;
  json["group"] = group_name;
  json["operations"] = nlohmann::ordered_json::array();
  for (const FlightRecord& record : records) {
    json["operations"].push_back(json_of(record));
  }
  // A group may be called anything; what is not UTF-8 becomes U+FFFD.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string called(const FlightRecord& record) {
  const std::string name = name_of(record.kind);
  return CallScope::words_in(record.scope, name, name);
}

std::string describe(const FlightRecord& record) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape_of(record)) {
    extents.push_back(extent < 0 ? "*" : std::to_string(extent));
  }
  std::string words = fmt::format("{} [{}]", name_of(record.dtype), fmt::join(extents, ", "));
  if (record.size_count > 0) {
    words += fmt::format(", sizes [{}{}]", fmt::join(sizes_of(record), ", "),
                         record.size_count > FlightRecord::kSizes ? ", ..." : "");
  }
  return words + fmt::format(", {} bytes", record.bytes);
}

}  // namespace meshrun::ucx
