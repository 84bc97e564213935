#include "client/render/flight_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/render/style.h"
#include "client/render/table.h"

namespace meshrun::client {
namespace {

using Json = nlohmann::ordered_json;

// The most operations of each group that are shown; the JSON has more.
constexpr size_t kShown = 16;

void Sort(std::vector<v1::FlightRecord>* records) {
  std::sort(records->begin(), records->end(),
            [](const auto& a, const auto& b) { return a.rank() < b.rank(); });
}

// A rank may be of another version: missing fields are empty.
Json Member(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : Json();
}
std::string Text(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? OneLine(value.get<std::string>(), 60) : value.dump();
}

bool HasEnded(const Json& operation) {
  const std::string state = Text(Member(operation, "state"));
  return state == "done" || state == "failed";
}

std::string Took(const Json& operation, const Json& now) {
  const Json begun = Member(operation, "submitted_ms");
  const Json ended = HasEnded(operation) ? Member(operation, "finished_ms") : now;
  if (!begun.is_number() || !ended.is_number()) return "";
  const double ms = ended.get<double>() - begun.get<double>();
  return ms < 1000 ? fmt::format("{:.3f} ms", ms) : fmt::format("{:.1f} s", ms / 1000);
}

std::string DescribeGroup(const Json& group, const Json& now) {
  const Json operations = Member(group, "operations");
  const size_t count = operations.is_array() ? operations.size() : 0;
  const size_t running = std::count_if(operations.begin(), operations.end(),
                                       [](const Json& operation) { return !HasEnded(operation); });
  std::string out = fmt::format("  group \"{}\": {}, {} not ended\n", Text(Member(group, "group")),
                                Count(count, "operation"), running);
  Table table(
      {">number", "operation", "state", "dtype", "shape", "sizes", ">peer", ">bytes", ">took"});
  for (size_t i = 0; i < count; ++i) {
    const Json& operation = operations[i];
    if (i + kShown < count && HasEnded(operation)) continue;
    table.Add({Text(Member(operation, "sequence")), Text(Member(operation, "operation")),
               Text(Member(operation, "state")), Text(Member(operation, "dtype")),
               Text(Member(operation, "shape")), Text(Member(operation, "sizes")),
               Text(Member(operation, "peer")), Text(Member(operation, "bytes")),
               Took(operation, now)});
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
    const Json json = Json::parse(record.json(), nullptr, /*allow_exceptions=*/false);
    const Json groups = Member(json, "groups");
    if (!groups.is_array()) {
      out += "  its record cannot be read: is the rank of another version?\n";
    } else if (groups.empty()) {
      out += "  no process group on ucx\n";
    } else {
      for (const Json& group : groups) out += DescribeGroup(group, Member(json, "now_ms"));
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
