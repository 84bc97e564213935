#include "coordinator/api/flight_sentence.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

using Json = nlohmann::json;

struct Operation {
  std::string name;
  bool has_ended = false;
};
// By number.
using Operations = std::map<int64_t, Operation>;
// By rank, of each group.
using Groups = std::map<std::string, std::map<int, Operations>>;

// A rank may be of another version: what is missing is left out.
std::string TextOf(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string()) return "";
  return std::string(Utf8Prefix(EscapeControls(found->get<std::string>()), 100));
}

const Json* ListOf(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? &*found : nullptr;
}

Groups Read(const std::vector<v1::FlightRecord>& records) {
  Groups out;
  for (const v1::FlightRecord& record : records) {
    const Json json = Json::parse(record.json(), nullptr, /*allow_exceptions=*/false);
    const Json* const groups = ListOf(json, "groups");
    if (groups == nullptr) continue;
    for (const Json& group : *groups) {
      Operations& operations = out[TextOf(group, "group")][record.rank()];
      const Json* const list = ListOf(group, "operations");
      if (list == nullptr) continue;
      for (const Json& operation : *list) {
        if (!operation.is_object()) continue;
        const auto number = operation.find("sequence");
        if (number == operation.end() || !number->is_number_integer()) continue;
        const std::string state = TextOf(operation, "state");
        operations[number->get<int64_t>()] = {TextOf(operation, "operation"),
                                              state == "done" || state == "failed"};
      }
    }
  }
  return out;
}

// The first collective that has not ended on some rank.
std::optional<int64_t> FirstWaited(const std::map<int, Operations>& ranks) {
  std::optional<int64_t> out;
  for (const auto& [rank, operations] : ranks) {
    for (const auto& [number, operation] : operations) {
      if (!operation.has_ended && (!out || number < *out)) out = number;
    }
  }
  return out;
}

std::string Ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", FormatRanks(ranks));
}

std::string DescribeGroup(const std::string& name, const std::map<int, Operations>& ranks,
                          int64_t number, bool* is_stuck) {
  // Ranks by what each calls there.
  std::map<std::string, std::vector<int>> waiting;
  std::vector<int> missing;
  for (const auto& [rank, operations] : ranks) {
    if (const auto found = operations.find(number); found != operations.end()) {
      waiting[found->second.name].push_back(rank);
    } else if (operations.empty() || operations.rbegin()->first < number) {
      missing.push_back(rank);
    }
  }
  *is_stuck = !missing.empty() || waiting.size() > 1;
  std::string out = fmt::format("In group \"{}\"", name);
  const char* joint = " ";
  for (const auto& [operation, callers] : waiting) {
    out += fmt::format("{}{} wait{} in {} number {}", joint, Ranks(callers),
                       callers.size() == 1 ? "s" : "", operation, number);
    joint = ", and ";
  }
  if (!missing.empty()) {
    out += fmt::format(", which {} {} not called", Ranks(missing),
                       missing.size() == 1 ? "has" : "have");
  } else if (waiting.size() > 1) {
    out += ": they do not call the same";
  } else {
    out += ", which all have called";
  }
  return out + ".";
}

}  // namespace

std::string FlightSentence(const std::vector<v1::FlightRecord>& records) {
  std::string under_way;
  for (const auto& [name, ranks] : Read(records)) {
    const auto number = FirstWaited(ranks);
    if (!number) continue;
    bool is_stuck = false;
    std::string sentence = DescribeGroup(name, ranks, *number, &is_stuck);
    if (is_stuck) return sentence;
    if (under_way.empty()) under_way = std::move(sentence);
  }
  return under_way.empty() ? "No collective is under way." : under_way;
}

}  // namespace meshrun::coordinator
