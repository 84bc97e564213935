#include "coordinator/api/flight_sentence.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>

#include "core/flight_record/flight_record.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

struct Operation {
  std::string name;
  bool has_ended = false;
};
// By number.
using Operations = std::map<int64_t, Operation>;
// By rank, of each group.
using Groups = std::map<std::string, std::map<int, Operations>>;

// A rank may write what it likes.
std::string Shown(std::string_view text) {
  return std::string(Utf8Prefix(EscapeControls(text), 100));
}

Groups Read(const std::vector<v1::FlightRecord>& records) {
  Groups out;
  for (const v1::FlightRecord& record : records) {
    const std::optional<FlightGroups> read = ReadFlightGroups(record.json());
    if (!read) continue;
    for (const FlightGroup& group : read->groups) {
      Operations& operations = out[Shown(group.name)][record.rank()];
      for (const FlightOperation& operation : group.operations) {
        if (!operation.number) continue;
        operations[*operation.number] = {Shown(operation.name), operation.HasEnded()};
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
