// What an HTTP handler is asked, and what it answers. Threads: values, no threads.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "core/rpc/roles.h"

namespace meshrun::http {

struct Request {
  // GET, HEAD or POST; the body of another one is not read, and its answer is MethodNotAllowed. The
  // answer to HEAD is that of GET, and its body is not sent.
  std::string method;
  // Without the query, percents decoded: "/api/v1/jobs/17".
  std::string path;
  std::multimap<std::string, std::string> query;
  // By names in lower case.
  std::multimap<std::string, std::string> headers;
  std::string body;
  // "unix", "ipv4:10.0.0.7:4242".
  std::string peer;
  // Empty where no certificate was shown.
  rpc::Identity caller;
  std::string certificate_pem;
  // Over a Unix socket, or plaintext: there is no certificate, and the caller may do everything.
  bool trusted = false;
  // True: the answer is not sent any more, because the server ends, or what is behind it. A handler
  // that waits asks it some ten times a second. Valid until the handler returns; may be null.
  std::function<bool()> gone = nullptr;

  // The first one of this name, in lower case; empty: there is none.
  std::string_view header(const std::string& name) const;
};

using Headers = std::vector<std::pair<std::string, std::string>>;

struct Response {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  Headers headers = {};
};

// A body without an end of its own, for example server-sent events ("text/event-stream").
struct Streaming {
  std::string content_type;
  // Bytes to send now; empty: none yet, ask again; nullopt: the body ends. It waits for `wait` at
  // most. Called on the connection's thread, until the body ends, the client goes away, its
  // certificate is denied, or the server stops.
  std::function<std::optional<std::string>(std::chrono::milliseconds wait)> next;
  // Called once, after the last `next`, also where there was none; may be null.
  std::function<void()> closed;
  Headers headers = {};
};

using Answer = std::variant<Response, Streaming>;
using Handler = std::function<Answer(const Request&)>;

// The HTTP status that stands for a code of gRPC: NOT_FOUND is 404.
int HttpStatus(absl::StatusCode code);
// {"code": "NOT_FOUND", "message": "...", "retryAfterSeconds": 0.5}
Response ErrorResponse(const absl::Status& status);

// Whether it only looks: GET or HEAD.
bool IsGet(const Request& request);
// 405 with the code UNIMPLEMENTED. `allowed`: what may be asked of its path, "GET, HEAD".
Response MethodNotAllowed(const Request& request, std::string_view allowed);

}  // namespace meshrun::http
