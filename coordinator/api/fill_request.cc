#include "coordinator/api/fill_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/api/log_cursor.h"
#include "core/json/read_json.h"
#include "core/parse_integer.h"
#include "core/status.h"
#include "core/text.h"
#include "core/utf8.h"

namespace meshrun::coordinator {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Bytes of a wrong value that an error shows.
constexpr size_t kShown = 60;

absl::Status Wrong(std::string_view name, std::string_view value, std::string_view write) {
  std::string shown = EscapeControls(value);
  if (shown.size() > kShown) shown = std::string(Utf8Prefix(shown, kShown)) + "...";
  return absl::InvalidArgumentError(fmt::format("{}={}: write {}", name, shown, write));
}

// No parameter counts below 0, whatever the field could hold.
template <typename Number>
absl::StatusOr<Number> ParseNumber(std::string_view name, std::string_view value) {
  const auto number = ParseInteger<Number>(value);
  if (number && std::cmp_greater_equal(*number, 0)) return *number;
  return Wrong(name, value, "a whole number, 0 or more");
}

absl::StatusOr<int> ParseEnum(std::string_view name, const EnumDescriptor& type,
                              std::string_view value) {
  std::string wanted(value);
  std::transform(wanted.begin(), wanted.end(), wanted.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) {
    const EnumValueDescriptor& known = *type.value(i);
    if (known.number() == 0) continue;
    if (wanted == known.name() || wanted == ShortName(known)) return known.number();
    names.push_back(ShortName(known));
  }
  return Wrong(name, value, fmt::format("one of {}", fmt::join(names, ", ")));
}

std::vector<std::string_view> Split(std::string_view text) {
  std::vector<std::string_view> out;
  while (true) {
    const size_t end = text.find(',');
    out.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

absl::Status AddToList(std::string_view name, const FieldDescriptor& field,
                       const std::string& value, Message* request) {
  const auto& to = *request->GetReflection();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    for (const std::string_view part : Split(value)) {
      MESHRUN_ASSIGN_OR_RETURN(const int number, ParseEnum(name, *field.enum_type(), part));
      to.AddEnumValue(request, &field, number);
    }
    return absl::OkStatus();
  }
  auto ranks = ParseRanks(value);
  if (!ranks.ok()) return Annotate(ranks.status(), std::string(name));
  for (const int rank : *ranks) to.AddInt32(request, &field, rank);
  return absl::OkStatus();
}

absl::Status SetValue(std::string_view name, const FieldDescriptor& field, const std::string& value,
                      Message* request) {
  if (field.is_repeated()) return AddToList(name, field, value, request);
  const auto& to = *request->GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      MESHRUN_ASSIGN_OR_RETURN(const auto number, ParseNumber<int32_t>(name, value));
      to.SetInt32(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      MESHRUN_ASSIGN_OR_RETURN(const auto number, ParseNumber<int64_t>(name, value));
      to.SetInt64(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      MESHRUN_ASSIGN_OR_RETURN(const auto number, ParseNumber<uint32_t>(name, value));
      to.SetUInt32(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      MESHRUN_ASSIGN_OR_RETURN(const auto number, ParseNumber<uint64_t>(name, value));
      to.SetUInt64(request, &field, number);
      return absl::OkStatus();
    }
    case FieldDescriptor::CPPTYPE_BOOL:
      if (value != "true" && value != "false" && !value.empty()) {
        return Wrong(name, value, "true or false");
      }
      to.SetBool(request, &field, value != "false");
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      google::protobuf::Timestamp at;
      if (!google::protobuf::util::TimeUtil::FromString(value, &at)) {
        return Wrong(name, value, "a time such as 2026-11-23T07:15:00Z");
      }
      to.MutableMessage(request, &field)->CopyFrom(at);
      return absl::OkStatus();
    }
    default:
      if (!IsUtf8(value)) return Wrong(name, value, "text in UTF-8");
      to.SetString(request, &field, value);
      return absl::OkStatus();
  }
}

const FieldDescriptor& FieldOf(const Message& request, std::string_view name) {
  return *request.GetDescriptor()->FindFieldByName(std::string(name));
}

bool IsLogCursor(const FieldDescriptor& field) {
  return field.message_type() == v1::LogPosition::descriptor();
}

absl::Status FillQuery(const Route& route, const Query& query, Message* request) {
  std::map<std::string_view, int> seen;
  const std::string* cursor = nullptr;
  for (const auto& [name, value] : query) {
    const auto known = std::find_if(route.query.begin(), route.query.end(),
                                    [&](const Parameter& one) { return one.name == name; });
    if (known == route.query.end()) {
      std::vector<std::string_view> names;
      for (const Parameter& one : route.query) names.push_back(one.name);
      return absl::InvalidArgumentError(fmt::format(
          "there is no parameter '{}': {} {} takes {}", EscapeControls(name), route.http,
          route.path, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
    }
    if (known->field.empty()) continue;
    const FieldDescriptor& field = FieldOf(*request, known->field);
    if (++seen[known->name] > 1 && (!field.is_repeated() || IsLogCursor(field))) {
      return absl::InvalidArgumentError(fmt::format("{} stands twice in the query", name));
    }
    if (IsLogCursor(field)) {
      cursor = &value;
    } else {
      MESHRUN_RETURN_IF_ERROR(SetValue(name, field, value, request));
    }
  }
  // Last: it is compared with the others.
  if (cursor == nullptr) return absl::OkStatus();
  return ReadLogCursor(*cursor, static_cast<v1::ReadLogsRequest*>(request));
}

// A list of ranks in the body, as one of the query, has no number below 0.
absl::Status CheckRanks(const Route& route, const Message& request) {
  for (const std::string_view name : route.body) {
    const FieldDescriptor& field = FieldOf(request, name);
    if (!field.is_repeated() || field.cpp_type() != FieldDescriptor::CPPTYPE_INT32) continue;
    const auto& in = *request.GetReflection();
    for (int i = 0; i < in.FieldSize(request, &field); ++i) {
      const int rank = in.GetRepeatedInt32(request, &field, i);
      if (rank >= 0) continue;
      return absl::InvalidArgumentError(
          fmt::format("{}: {} is not a rank: write numbers, 0 or more", field.json_name(), rank));
    }
  }
  return absl::OkStatus();
}

absl::Status FillBody(const Route& route, std::string_view body, Message* request) {
  MESHRUN_RETURN_IF_ERROR(ReadJson(body, route.body, request));
  for (const std::string_view name : route.required) {
    const FieldDescriptor& field = FieldOf(*request, name);
    if (request->GetReflection()->HasField(*request, &field)) continue;
    return absl::InvalidArgumentError(fmt::format("the body has no '{}', and {} {} needs it",
                                                  field.json_name(), route.http, route.path));
  }
  return CheckRanks(route, *request);
}

}  // namespace

std::string ShortName(const EnumValueDescriptor& value) {
  // The zero of each is called PREFIX_UNSPECIFIED.
  constexpr std::string_view kZero = "UNSPECIFIED";
  const auto* const zero = value.type()->FindValueByNumber(0);
  if (zero == nullptr || !zero->name().ends_with(kZero)) return value.name();
  return value.name().substr(zero->name().size() - kZero.size());
}

absl::Status FillRequest(const Match& match, const Query& query, std::string_view body,
                         Message* request) {
  const Route& route = *match.route;
  if (route.http == "POST") MESHRUN_RETURN_IF_ERROR(FillBody(route, body, request));
  MESHRUN_RETURN_IF_ERROR(FillQuery(route, query, request));
  for (const Parameter& parameter : route.path_parameters) {
    MESHRUN_RETURN_IF_ERROR(SetValue(parameter.name, FieldOf(*request, parameter.field),
                                     match.path_values.at(std::string(parameter.name)), request));
  }
  for (const auto& [name, value] : route.fixed) {
    request->GetReflection()->SetBool(request, &FieldOf(*request, name), value);
  }
  return absl::OkStatus();
}

}  // namespace meshrun::coordinator
