#include "coordinator/api/schemas.h"

#include <string_view>
#include <utility>

namespace meshrun::coordinator {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

SchemaJson Integer(const char* format, bool is_signed) {
  SchemaJson out{{"type", "integer"}, {"format", format}};
  if (!is_signed) out["minimum"] = 0;
  return out;
}

SchemaJson Enumeration(const EnumDescriptor& type) {
  SchemaJson names = SchemaJson::array();
  for (int i = 0; i < type.value_count(); ++i) names.push_back(type.value(i)->name());
  return {{"type", "string"}, {"enum", std::move(names)}};
}

// JSON has no such numbers.
SchemaJson Real() {
  return {{"anyOf",
           SchemaJson::array({{{"type", "number"}, {"format", "double"}},
                              {{"type", "string"}, {"enum", {"NaN", "Infinity", "-Infinity"}}}})}};
}

bool IsEnvironment(const FieldDescriptor& field) {
  return field.is_repeated() && field.message_type() != nullptr &&
         field.message_type()->full_name() == "meshrun.v1.EnvEntry";
}

// A plain field is always there.
bool IsAlwaysThere(const FieldDescriptor& field) {
  if (field.is_repeated()) return true;
  // A rank that a signal ended has no exit code.
  if (field.full_name() == "meshrun.v1.RankExit.exit_code") return false;
  return !field.has_presence();
}

}  // namespace

template <typename Described>
std::string CommentOf(const Described& described) {
  google::protobuf::SourceLocation location;
  if (!described.GetSourceLocation(&location)) return "";
  std::string out;
  for (const char c : location.leading_comments) {
    const char blank = c == '\n' ? ' ' : c;
    if (blank != ' ' || (!out.empty() && out.back() != ' ')) out += blank;
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}
template std::string CommentOf(const FieldDescriptor&);
template std::string CommentOf(const Descriptor&);
template std::string CommentOf(const google::protobuf::MethodDescriptor&);

SchemaJson Schemas::One(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return Integer("int32", true);
    case FieldDescriptor::CPPTYPE_INT64:
      return Integer("int64", true);
    case FieldDescriptor::CPPTYPE_UINT32:
      return Integer("uint32", false);
    case FieldDescriptor::CPPTYPE_UINT64:
      return Integer("uint64", false);
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Real();
    case FieldDescriptor::CPPTYPE_BOOL:
      return {{"type", "boolean"}};
    case FieldDescriptor::CPPTYPE_ENUM:
      return Enumeration(*field.enum_type());
    case FieldDescriptor::CPPTYPE_STRING:
      return {{"type", "string"}};
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Of(*field.message_type());
  }
  return SchemaJson::object();
}

SchemaJson Schemas::Of(const FieldDescriptor& field) {
  SchemaJson out;
  if (field.is_map()) {
    out = {{"type", "object"}, {"additionalProperties", One(*field.message_type()->map_value())}};
  } else if (IsEnvironment(field)) {
    out = {{"type", "object"}, {"additionalProperties", {{"type", "string"}}}};
  } else if (field.is_repeated()) {
    out = {{"type", "array"}, {"items", One(field)}};
  } else {
    out = One(field);
  }
  const std::string comment = CommentOf(field);
  if (comment.empty()) return out;
  // Nothing else may stand beside a reference.
  if (out.contains("$ref")) return {{"allOf", SchemaJson::array({out})}, {"description", comment}};
  out["description"] = comment;
  return out;
}

SchemaJson Schemas::Of(const Descriptor& type) {
  if (type.full_name() == "google.protobuf.Timestamp") {
    return {{"type", "string"}, {"format", "date-time"}};
  }
  if (type.full_name() == "google.protobuf.Duration") {
    return {{"type", "string"}, {"pattern", R"(^-?[0-9]+(\.[0-9]+)?s$)"}};
  }
  if (!all_.contains(type.name())) Add(type);
  return {{"$ref", "#/components/schemas/" + type.name()}};
}

void Schemas::Add(const Descriptor& type) {
  // First: a message may hold itself.
  all_[type.name()] = SchemaJson::object();
  SchemaJson properties = SchemaJson::object();
  SchemaJson required = SchemaJson::array();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    // ToJson writes it as a time.
    if (field.full_name() == "meshrun.v1.RankExit.at_unix_nanos") {
      properties["at"] = {
          {"type", "string"}, {"format", "date-time"}, {"description", CommentOf(field)}};
      continue;
    }
    properties[field.json_name()] = Of(field);
    if (IsAlwaysThere(field)) required.push_back(field.json_name());
  }
  SchemaJson out{{"type", "object"}};
  if (const std::string comment = CommentOf(type); !comment.empty()) out["description"] = comment;
  out["properties"] = std::move(properties);
  if (!required.empty()) out["required"] = std::move(required);
  out["additionalProperties"] = false;
  all_[type.name()] = std::move(out);
}

}  // namespace meshrun::coordinator
