#include "core/http/message.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error_detail.h"
#include "core/utf8.h"

namespace meshrun::http {

std::string_view Request::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : found->second;
}

int HttpStatus(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Response ErrorResponse(const absl::Status& status) {
  nlohmann::ordered_json body;
  body["code"] = std::string(absl::StatusCodeToString(status.code()));
  body["message"] = EscapeBytes({status.message().data(), status.message().size()});
  Response response{.status = HttpStatus(status.code()), .content_type = "application/json"};
  if (const auto after = RetryAfter(status)) {
    const double seconds = std::chrono::duration<double>(*after).count();
    body["retryAfterSeconds"] = seconds;
    // Whole seconds, as HTTP wants them.
    response.headers.emplace_back("Retry-After",
                                  std::to_string(static_cast<int64_t>(std::ceil(seconds))));
  }
  response.body = body.dump() + "\n";
  return response;
}

bool IsGet(const Request& request) { return request.method == "GET" || request.method == "HEAD"; }

Response MethodNotAllowed(const Request& request, std::string_view allowed) {
  Response response = ErrorResponse(absl::UnimplementedError(
      fmt::format("{} is not for {}: use {}", request.path, request.method, allowed)));
  response.status = 405;
  response.headers.emplace_back("Allow", allowed);
  return response;
}

}  // namespace meshrun::http
