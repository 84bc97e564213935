#include "client/render/flight_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "client/render/style.h"
#include "client/render/table.h"
#include "core/flight_record/flight_record.h"

namespace meshrun::client {
namespace {

using Json = nlohmann::ordered_json;

// The most operations of each group that are shown; the JSON has more.
constexpr size_t kShown = 16;

void Sort(std::vector<v1::FlightRecord>* records) {
  std::sort(records->begin(), records->end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
}

// Missing fields are empty.
std::string Text(const FlightOperation& operation, const char* name) {
  const auto found = operation.fields.find(name);
  if (found == operation.fields.end() || found->is_null()) return "";
  return found->is_string() ? OneLine(found->get<std::string>(), 60) : found->dump();
}

std::string Took(const FlightOperation& operation, std::optional<double> now_ms) {
  const std::optional<double> ended = operation.HasEnded() ? operation.finished_ms : now_ms;
  if (!operation.submitted_ms || !ended) return "";
  const double ms = *ended - *operation.submitted_ms;
  return ms < 1000 ? fmt::format("{:.3f} ms", ms) : fmt::format("{:.1f} s", ms / 1000);
}

std::string DescribeGroup(const FlightGroup& group, std::optional<double> now_ms) {
  const auto& operations = group.operations;
  const auto running =
      std::count_if(operations.begin(), operations.end(),
                    [](const FlightOperation& operation) { return !operation.HasEnded(); });
  std::string out = fmt::format("  group \"{}\": {}, {} not ended\n", OneLine(group.name, 60),
                                Count(operations.size(), "operation"), running);
  Table table(
      {">number", "operation", "state", "dtype", "shape", "sizes", ">peer", ">bytes", ">took"});
  for (size_t i = 0; i < operations.size(); ++i) {
    const FlightOperation& operation = operations[i];
    if (i + kShown < operations.size() && operation.HasEnded()) continue;
    table.Add({Text(operation, "sequence"), Text(operation, "operation"), Text(operation, "state"),
               Text(operation, "dtype"), Text(operation, "shape"), Text(operation, "sizes"),
               Text(operation, "peer"), Text(operation, "bytes"), Took(operation, now_ms)});
  }
  if (!table.empty()) out += table.Render(4);
  return out;
}

}  // namespace

std::string DescribeFlightRecords(std::vector<v1::FlightRecord> records) {
  Sort(&records);
  std::string out;
  for (const v1::FlightRecord& record : records) {
    if (!record.error().empty()) {
      out += fmt::format("rank {}: {}\n", record.rank(), OneLine(record.error(), 300));
      continue;
    }
    out += fmt::format("rank {}\n", record.rank());
    const std::optional<FlightGroups> read = ReadFlightGroups(record.json());
    if (!read) {
      out += "  its record cannot be read: is the rank of another version?\n";
    } else if (read->groups.empty()) {
      out += "  no process group on ucx\n";
    } else {
      for (const FlightGroup& group : read->groups) out += DescribeGroup(group, read->now_ms);
    }
  }
  return out;
}

std::string FlightRecordsJson(std::vector<v1::FlightRecord> records) {
  Sort(&records);
  Json all = Json::array();
  for (const v1::FlightRecord& record : records) {
    Json entry;
    entry["rank"] = record.rank();
    const Json json = Json::parse(record.json(), nullptr, /*allow_exceptions=*/false);
    if (!record.error().empty()) {
      entry["error"] = record.error();
    } else if (!json.is_object()) {
      entry["error"] = "its record cannot be read";
    } else {
      entry.update(json);
    }
    all.push_back(std::move(entry));
  }
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace meshrun::client
