#include "coordinator/api/openapi.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/api/routes.h"
#include "coordinator/api/schemas.h"

namespace meshrun::coordinator {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::MethodDescriptor;

constexpr const char* kAbout =
    "What the coordinator's HTTP port answers. Each call stands for a gRPC method and has its "
    "rules: with TLS the caller shows a certificate of the cluster's authority, whose roles "
    "decide; "
    "over a Unix socket the directory's user may do everything. Names are those of 'meshrun ... "
    "--output json'. Times are RFC 3339 in UTC, durations text such as 5s. Fields may be added.";

// What a request takes (core/json/read_json.h); it has no sign, and is at most a hundred years.
constexpr const char* kDurationPattern = R"(^[0-9]{1,10}(\.[0-9]{1,9})?s$)";

SchemaJson Text(const char* description) {
  return {{"type", "string"}, {"description", description}};
}

SchemaJson Object(SchemaJson properties, const std::vector<const char*>& optional = {}) {
  SchemaJson required = SchemaJson::array();
  for (const auto& [name, schema] : properties.items()) {
    if (std::find(optional.begin(), optional.end(), name) == optional.end()) {
      required.push_back(name);
    }
  }
  return {{"type", "object"},
          {"properties", std::move(properties)},
          {"required", std::move(required)},
          {"additionalProperties", false}};
}

SchemaJson List(SchemaJson items) { return {{"type", "array"}, {"items", std::move(items)}}; }

SchemaJson Count() { return {{"type", "integer"}, {"format", "uint64"}, {"minimum", 0}}; }

SchemaJson More(const char* description) {
  return {{"type", "boolean"}, {"description", description}};
}

SchemaJson ErrorSchema() {
  return Object({{"code", Text("The status code of gRPC: NOT_FOUND, PERMISSION_DENIED, ...")},
                 {"message", Text("What is wrong, for a person.")},
                 {"retryAfterSeconds",
                  {{"type", "number"},
                   {"description", "The call did nothing, and may be repeated after so long."}}}},
                {"retryAfterSeconds"});
}

SchemaJson PieceSchema() {
  return Object({{"rank", {{"type", "integer"}, {"format", "int32"}}},
                 {"stream", {{"type", "string"}, {"enum", {"stdout", "stderr"}}}},
                 {"generation", Count()},
                 {"offset", Count()},
                 {"dropped", Count()},
                 {"text", Text("UTF-8; any other byte as \\xNN.")}});
}

const MethodDescriptor* Find(const DescriptorPool& contracts, std::string_view method) {
  std::string name(method.substr(1));
  std::replace(name.begin(), name.end(), '/', '.');
  return contracts.FindMethodByName(name);
}

bool IsDuration(const FieldDescriptor& field) {
  return field.message_type() != nullptr &&
         field.message_type()->full_name() == "google.protobuf.Duration";
}

bool IsListOfRanks(const FieldDescriptor& field) {
  return field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_INT32;
}

// A value of the path or of the query: see fill_request.h.
SchemaJson ParameterSchema(const FieldDescriptor& field, Schemas& schemas) {
  if (IsListOfRanks(field)) {
    return {{"type", "string"}, {"pattern", R"(^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$)"}};
  }
  if (field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return {{"type", "string"}, {"pattern", R"(^[0-9]+(\.[0-9]+[oe][0-9]+)*$)"}};
  }
  SchemaJson out = schemas.Of(field);
  out.erase("description");
  if (out.value("type", "") == "integer") out["minimum"] = 0;
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    // Without the zero, and without what all begin with.
    SchemaJson& names = out["items"]["enum"];
    const size_t prefix = names[0].get<std::string>().rfind("UNSPECIFIED");
    names.erase(names.begin());
    for (SchemaJson& name : names) name = name.get<std::string>().substr(prefix);
  }
  return out;
}

SchemaJson ParametersOf(const Route& route, const Descriptor* request, Schemas& schemas) {
  SchemaJson out = SchemaJson::array();
  const auto add = [&](const Parameter& parameter, const char* in) {
    const FieldDescriptor* const field = request->FindFieldByName(std::string(parameter.field));
    out.push_back({{"name", std::string(parameter.name)},
                   {"in", in},
                   {"required", std::string_view(in) == "path"},
                   {"description", std::string(parameter.description)},
                   {"schema", field == nullptr ? SchemaJson{{"type", "string"}}
                                               : ParameterSchema(*field, schemas)}});
  };
  for (const Parameter& parameter : route.path_parameters) add(parameter, "path");
  for (const Parameter& parameter : route.query) add(parameter, "query");
  return out;
}

SchemaJson BodyOf(const Route& route, const Descriptor& request, Schemas& schemas) {
  SchemaJson properties = SchemaJson::object();
  const auto field_of = [&request](std::string_view name) -> const FieldDescriptor& {
    return *request.FindFieldByName(std::string(name));
  };
  for (const std::string_view name : route.body) {
    const FieldDescriptor& field = field_of(name);
    SchemaJson& schema = properties[field.json_name()] = schemas.Of(field);
    if (IsDuration(field)) schema["pattern"] = kDurationPattern;
    if (IsListOfRanks(field)) schema["items"]["minimum"] = 0;
  }
  SchemaJson out{{"type", "object"}, {"properties", std::move(properties)}};
  for (const std::string_view name : route.required) {
    out["required"].push_back(field_of(name).json_name());
  }
  out["additionalProperties"] = false;
  return out;
}

SchemaJson AnswerSchema(const Route& route, const MethodDescriptor* method,
                        const DescriptorPool& contracts, Schemas& schemas) {
  const auto message = [&](const char* name) {
    return schemas.Of(*contracts.FindMessageTypeByName(name));
  };
  switch (route.answer) {
    case AnswerKind::kResponse:
      return schemas.Of(*method->output_type());
    case AnswerKind::kCaller:
      return Object({{"user", Text("Name in the certificate, or the socket's user.")},
                     {"roles", List({{"type", "string"}})},
                     {"may", List(Text("A method that these roles allow."))}});
    case AnswerKind::kDocument:
      return {{"type", "object"}};
    case AnswerKind::kLogPieces:
      return Object(
          {{"pieces", List({{"$ref", "#/components/schemas/LogPiece"}})},
           {"more", More("There is more now: ask for it with `next`.")},
           {"next", Text("The place after this output, for `after` of the next call. Absent: "
                         "there is no output yet, or so many ranks have some that their places "
                         "have no room: ask for fewer ranks.")},
           {"problem", Text("Why some of the output could not be read.")}},
          {"next", "problem"});
    case AnswerKind::kStacks:
      return Object({{"stacks", List(message("meshrun.v1.RankStack"))},
                     {"generation", Count()},
                     {"more", More("Stacks of further ranks have no room: ask for these ranks.")}});
    case AnswerKind::kFlightRecords:
      return Object({{"records", List(message("meshrun.v1.FlightRecord"))},
                     {"generation", Count()},
                     {"more", More("Records of further ranks have no room.")},
                     {"sentence", Text("What they say together.")}});
    case AnswerKind::kPictures:
      return Object({{"pictures", List(message("meshrun.v1.Picture"))},
                     {"problem", Text("Why some of them are not known.")}},
                    {"problem"});
    case AnswerKind::kPicture:
      return {{"type", "string"}, {"format", "binary"}};
    case AnswerKind::kEvents:
      // Named in the description: a stream of events has no schema of its own.
      schemas.Of(*method->output_type());
      return Text(
          "'event: change' with a WatchJobResponse as data: first the whole job, then its changes. "
          "'event: end' when the job has ended, 'event: error' with an Error. Lines that begin "
          "with "
          "a colon say that the connection lives.");
    case AnswerKind::kLogEvents:
      return Text(
          "'event: log' with a LogPiece as data. 'event: end' when all output has been sent, "
          "'event: error' with an Error. Lines that begin with a colon say that the connection "
          "lives.");
  }
  return SchemaJson::object();
}

std::vector<const char*> TypesOf(AnswerKind answer) {
  switch (answer) {
    case AnswerKind::kEvents:
    case AnswerKind::kLogEvents:
      return {"text/event-stream"};
    case AnswerKind::kPicture:
      return {"image/png", "image/jpeg", "image/webp", "image/gif"};
    default:
      return {"application/json"};
  }
}

// "getJobsJobWatch": the path in camel case.
std::string OperationId(const Route& route) {
  std::string out = route.http == "POST" ? "post" : "get";
  bool begins = false;
  for (const char c : route.path) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (is_letter) out += begins && c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c;
    begins = !is_letter;
  }
  return out;
}

SchemaJson Operation(const Route& route, const DescriptorPool& contracts, Schemas& schemas) {
  const MethodDescriptor* const method =
      route.method.starts_with("http:") ? nullptr : Find(contracts, route.method);
  SchemaJson out{{"operationId", OperationId(route)}, {"summary", std::string(route.summary)}};
  if (method != nullptr) {
    out["description"] = CommentOf(*method);
    out["x-grpc-method"] = std::string(route.method);
    SchemaJson parameters = ParametersOf(route, method->input_type(), schemas);
    if (!parameters.empty()) out["parameters"] = std::move(parameters);
  }
  if (route.http == "POST") {
    out["requestBody"] = {
        {"required", true},
        {"content",
         {{"application/json", {{"schema", BodyOf(route, *method->input_type(), schemas)}}}}}};
  }
  SchemaJson content = SchemaJson::object();
  for (const char* const type : TypesOf(route.answer)) {
    content[type] = {{"schema", AnswerSchema(route, method, contracts, schemas)}};
  }
  out["responses"] = {
      {"200", {{"description", std::string(route.summary)}, {"content", std::move(content)}}},
      {"default",
       {{"description", "An error."},
        {"content",
         {{"application/json", {{"schema", {{"$ref", "#/components/schemas/Error"}}}}}}}}}};
  return out;
}

}  // namespace

std::string OpenApiDocument(const DescriptorPool& contracts) {
  Schemas schemas;
  SchemaJson paths = SchemaJson::object();
  for (const Route& route : Routes()) {
    paths[std::string(route.path)][route.http == "POST" ? "post" : "get"] =
        Operation(route, contracts, schemas);
  }
  SchemaJson components = SchemaJson::object();
  components["Error"] = ErrorSchema();
  components["LogPiece"] = PieceSchema();
  for (const auto& [name, schema] : schemas.all()) components[name] = schema;
  const SchemaJson document{
      {"openapi", "3.0.3"},
      {"info", {{"title", "meshrun"}, {"version", "1"}, {"description", kAbout}}},
      {"servers", SchemaJson::array({{{"url", std::string(kApiBase)}}})},
      {"paths", std::move(paths)},
      {"components", {{"schemas", std::move(components)}}}};
  return document.dump(1) + "\n";
}

}  // namespace meshrun::coordinator
