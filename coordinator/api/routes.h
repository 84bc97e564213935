// The HTTP API as a table: one row for each call. The handler (api.h) and the OpenAPI document
// (openapi.h) are made from it. Pure.
//
// A row names the gRPC method that the call stands for. Who may make it, for which jobs, what it
// may cost and what is noted of it are that method's: core/rpc/roles.cc and the services.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun::coordinator {

inline constexpr std::string_view kApiBase = "/api/v1";

// A part of the path, {job}, or of the query, and the field of the request that it fills. What a
// value looks like follows from the field's type (fill_request.h). Without a field: any text of
// the query, which only makes an address of its own for a browser.
struct Parameter {
  std::string_view name;
  std::string_view field;
  std::string_view description;
};

enum class AnswerKind {
  // The response of the method, as JSON.
  kResponse,
  // {"user", "roles", "may"}: who asks.
  kCaller,
  // The OpenAPI document.
  kDocument,
  // Server-sent events, one for each answer of the method.
  kEvents,
  // The same for the output of ranks, and one object with all pieces of it.
  kLogEvents,
  kLogPieces,
  // One object with all answers of the method.
  kStacks,
  kFlightRecords,
  // One object with which pictures there are; and the bytes of one.
  kPictures,
  kPicture,
};

struct Route {
  // GET or POST.
  std::string_view http;
  // Below kApiBase: "/jobs/{job}/cancel".
  std::string_view path;
  // "/meshrun.v1.JobService/CancelJob". Where no gRPC method is meant: "http:/...", which has a
  // row in the table of roles too.
  std::string_view method;
  AnswerKind answer = AnswerKind::kResponse;
  std::vector<Parameter> path_parameters = {};
  std::vector<Parameter> query = {};
  // Fields of the request that the body may name. Only of POST.
  std::vector<std::string_view> body = {};
  // Those of them that it must name: optional fields of the request.
  std::vector<std::string_view> required = {};
  // Boolean fields with the same value in each call of the row.
  std::vector<std::pair<std::string_view, bool>> fixed = {};
  std::string_view summary;
};

std::span<const Route> Routes();

// A row, and the parts of the path that stand for {...}, percents decoded.
struct Match {
  const Route* route = nullptr;
  std::map<std::string, std::string> path_values;
  // Where `route` is null: what may be asked of this path, for "Allow"; empty: there is no such
  // path.
  std::string allowed;
};
// `path` as in a request: "/api/v1/jobs/geoid-k3x9w2". HEAD is GET.
Match FindRoute(std::string_view http, std::string_view path);

}  // namespace meshrun::coordinator
