#include "core/json/json.h"

#include <fmt/format.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/env_entries.h"
#include "core/proto_time.h"
#include "core/utf8.h"
#include "meshrun/v1/common.pb.h"

namespace meshrun {
namespace {

using Json = nlohmann::ordered_json;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::TimeUtil;

Json ToValue(const Message& message);

std::string Hexadecimal(const std::string& bytes) {
  std::string out;
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

Json Text(const FieldDescriptor& field, const std::string& value) {
  return field.name().ends_with("digest") ? Hexadecimal(value) : EscapeBytes(value);
}

Json Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json Enum(const FieldDescriptor& field, int number) {
  const auto* const value = field.enum_type()->FindValueByNumber(number);
  return value == nullptr ? Json(number) : Json(value->name());
}

Json Single(const Message& message, const FieldDescriptor& field) {
  const auto& in = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return in.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return in.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return in.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return in.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(in.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(in.GetFloat(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return in.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Enum(field, in.GetEnumValue(message, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, in.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToValue(in.GetMessage(message, &field));
  }
  return nullptr;
}

Json Element(const Message& message, const FieldDescriptor& field, int i) {
  const auto& in = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return in.GetRepeatedInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_INT64:
      return in.GetRepeatedInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT32:
      return in.GetRepeatedUInt32(message, &field, i);
    case FieldDescriptor::CPPTYPE_UINT64:
      return in.GetRepeatedUInt64(message, &field, i);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(in.GetRepeatedDouble(message, &field, i));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(in.GetRepeatedFloat(message, &field, i));
    case FieldDescriptor::CPPTYPE_BOOL:
      return in.GetRepeatedBool(message, &field, i);
    case FieldDescriptor::CPPTYPE_ENUM:
      return Enum(field, in.GetRepeatedEnumValue(message, &field, i));
    case FieldDescriptor::CPPTYPE_STRING:
      return Text(field, in.GetRepeatedString(message, &field, i));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToValue(in.GetRepeatedMessage(message, &field, i));
  }
  return nullptr;
}

// By the key's text, so that two answers with the same content are the same text.
Json Map(const Message& message, const FieldDescriptor& field) {
  const auto& in = *message.GetReflection();
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& value = *field.message_type()->map_value();
  std::map<std::string, Json> sorted;
  for (int i = 0; i < in.FieldSize(message, &field); ++i) {
    const Message& entry = in.GetRepeatedMessage(message, &field, i);
    const Json name = Single(entry, key);
    sorted[name.is_string() ? name.get<std::string>() : name.dump()] = Single(entry, value);
  }
  Json out = Json::object();
  for (auto& [name, json] : sorted) out[name] = std::move(json);
  return out;
}

Json Environment(const Message& message, const FieldDescriptor& field) {
  const auto& in = *message.GetReflection();
  EnvEntries entries;
  for (int i = 0; i < in.FieldSize(message, &field); ++i) {
    entries.Add()->CopyFrom(in.GetRepeatedMessage(message, &field, i));
  }
  Json out = Json::object();
  for (const auto& [name, value] : EnvMap(entries)) out[EscapeBytes(name)] = EscapeBytes(value);
  return out;
}

Json Repeated(const Message& message, const FieldDescriptor& field) {
  if (field.is_map()) return Map(message, field);
  if (field.message_type() == v1::EnvEntry::descriptor()) return Environment(message, field);
  Json out = Json::array();
  const int size = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < size; ++i) out.push_back(Element(message, field, i));
  return out;
}

Json ToValue(const Message& message) {
  const auto* const type = message.GetDescriptor();
  if (type == google::protobuf::Timestamp::descriptor()) {
    google::protobuf::Timestamp at;
    at.CopyFrom(message);
    return TimeUtil::ToString(at);
  }
  if (type == google::protobuf::Duration::descriptor()) {
    google::protobuf::Duration duration;
    duration.CopyFrom(message);
    return TimeUtil::ToString(duration);
  }
  Json out = Json::object();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor& field = *type->field(i);
    if (field.is_repeated()) {
      out[field.json_name()] = Repeated(message, field);
    } else if (!field.has_presence() || message.GetReflection()->HasField(message, &field)) {
      out[field.json_name()] = Single(message, field);
    }
  }
  if (type == v1::RankExit::descriptor()) {
    v1::RankExit exit;
    exit.CopyFrom(message);
    if (exit.signal() != 0) out.erase("exitCode");
    out.erase("atUnixNanos");
    if (exit.at_unix_nanos() != 0) {
      out["at"] = TimeUtil::ToString(TimeUtil::NanosecondsToTimestamp(exit.at_unix_nanos()));
    }
  }
  return out;
}

}  // namespace

std::string ToJson(const Message& message) {
  return ToValue(message).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ToJsonLine(const Message& message) {
  return ToValue(message).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string JsonTime(WallNanos at) { return TimeUtil::ToString(ToProtoTimestamp(at)); }

}  // namespace meshrun
