// Calls of a coordinator's HTTP port: over its Unix socket, or over TLS with this user's
// certificate. Each call has a connection of its own. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rpc/security.h"

namespace meshrun::client {

struct HttpTarget {
  // unix:PATH, or HOST:PORT.
  std::string address;
  rpc::Security security;
};

struct HttpCall {
  std::string method = "GET";
  // Path and query, encoded: "/api/v1/jobs?state=RUNNING".
  std::string path;
  std::multimap<std::string, std::string> headers;
  std::string body;
  // The call ends after so much silence. An endless body sends something every 10 s.
  std::chrono::milliseconds timeout = std::chrono::seconds(5);
};

struct HttpHead {
  int status = 0;
  // Names as they were sent.
  std::multimap<std::string, std::string> headers;

  // The first of that name, in any case; empty: there is none.
  std::string Header(std::string_view name) const;
};

// Called with the answer's head, then with each piece of its body; false ends the call.
using OnHead = std::function<bool(const HttpHead&)>;
using OnData = std::function<bool(std::string_view)>;

// A call that another thread may end.
class HttpExchange {
 public:
  // INVALID_ARGUMENT: the address, or a TLS file.
  static absl::StatusOr<std::unique_ptr<HttpExchange>> Make(const HttpTarget& target);
  virtual ~HttpExchange() = default;
  // Returns when the answer has come, or `on_head` or `on_data` has said false. UNAVAILABLE: there
  // was no whole answer. Once.
  virtual absl::Status Perform(const HttpCall& call, const OnHead& on_head,
                               const OnData& on_data) = 0;
  virtual void Stop() = 0;
};

struct HttpAnswer {
  HttpHead head;
  std::string body;
};
// A whole answer, whatever its status says.
absl::StatusOr<HttpAnswer> Call(const HttpTarget& target, const HttpCall& call);
absl::StatusOr<HttpAnswer> Call(HttpExchange& exchange, const HttpCall& call);

// The body of an answer with status 200; of any other, the error that it tells
// (core/http/message.h).
absl::StatusOr<std::string> BodyOf(const HttpAnswer& answer);

// Percents for what a path or a query may not have: "a b/c" is "a%20b%2Fc".
std::string EncodeUrl(std::string_view text);

}  // namespace meshrun::client
