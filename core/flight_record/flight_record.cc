#include "core/flight_record/flight_record.h"

#include <utility>

namespace meshrun {
namespace {

using Json = nlohmann::ordered_json;

// Null: the object has no such member.
template <typename AnyJson>
AnyJson* Member(AnyJson& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string Text(const Json& object, const char* name) {
  const Json* const value = Member(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

std::optional<double> Number(const Json& object, const char* name) {
  const Json* const value = Member(object, name);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

// Takes the value: a copy of one that is nested a million times would overflow the stack.
FlightOperation ReadOperation(Json json) {
  FlightOperation out;
  if (!json.is_object()) return out;
  const Json* const number = Member(json, "sequence");
  if (number != nullptr && number->is_number_integer()) out.number = number->get<int64_t>();
  out.name = Text(json, "operation");
  out.state = Text(json, "state");
  out.submitted_ms = Number(json, "submitted_ms");
  out.checked_ms = Number(json, "checked_ms");
  out.finished_ms = Number(json, "finished_ms");
  out.fields = std::move(json);
  return out;
}

}  // namespace

std::optional<FlightGroups> ReadFlightGroups(std::string_view json) {
  Json record = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  Json* const groups = Member(record, "groups");
  if (groups == nullptr || !groups->is_array()) return std::nullopt;
  FlightGroups out;
  out.now_ms = Number(record, "now_ms");
  for (Json& group : *groups) {
    FlightGroup& read = out.groups.emplace_back();
    read.name = Text(group, "group");
    Json* const operations = Member(group, "operations");
    if (operations == nullptr || !operations->is_array()) continue;
    for (Json& operation : *operations) {
      read.operations.push_back(ReadOperation(std::move(operation)));
    }
  }
  return out;
}

}  // namespace meshrun
