// What a rank's record of its collectives says, read from the JSON that the rank has written
// (v1::FlightRecord). A rank may be of another version, or write what it likes: what is missing, or
// is of another type, is absent or empty. Texts are as they came: whoever shows them escapes and
// shortens them. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun {

struct FlightOperation {
  // Counts the calls of its group.
  std::optional<int64_t> number;
  // "all_reduce"
  std::string name;
  std::string state;
  // On the rank's steady clock.
  std::optional<double> submitted_ms;
  // All ranks had come.
  std::optional<double> checked_ms;
  std::optional<double> finished_ms;
  // Everything that the rank has written of it.
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();

  bool HasEnded() const { return state == "done" || state == "failed"; }
};

struct FlightGroup {
  std::string name;
  // The oldest first.
  std::vector<FlightOperation> operations;
};

struct FlightGroups {
  // When the record was made.
  std::optional<double> now_ms;
  std::vector<FlightGroup> groups;
};

// Absent: the text is no record.
std::optional<FlightGroups> ReadFlightGroups(std::string_view json);

}  // namespace meshrun
