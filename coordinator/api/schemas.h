// Messages as JSON schemas, in the form in which ToJson writes them (core/json/json.h). Pure.
#pragma once

#include <google/protobuf/descriptor.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace meshrun::coordinator {

using SchemaJson = nlohmann::ordered_json;

// The comment of a field, a message or a method, in one line.
template <typename Described>
std::string CommentOf(const Described& described);

class Schemas {
 public:
  // {"$ref": ...}, or what the message is written as. It, and all that it consists of, is then
  // among `all`.
  SchemaJson Of(const google::protobuf::Descriptor& type);
  // A field as one of an answer, or of a body.
  SchemaJson Of(const google::protobuf::FieldDescriptor& field);
  // By name.
  const std::map<std::string, SchemaJson>& all() const { return all_; }

 private:
  void Add(const google::protobuf::Descriptor& type);
  SchemaJson One(const google::protobuf::FieldDescriptor& field);

  std::map<std::string, SchemaJson> all_;
};

}  // namespace meshrun::coordinator
