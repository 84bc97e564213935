// The requests of one connection, one after another: parses each with cpp-httplib, asks the
// handler, and writes its answer. Threads: that of its connection.
#pragma once

#include <httplib.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/certificates/standing.h"
#include "core/http/server.h"
#include "core/http/wire.h"

namespace meshrun::http {

// What an exchange needs of its server.
class ExchangeHost {
 public:
  virtual ~ExchangeHost() = default;

  virtual const Limits& limits() const = 0;
  virtual const Handler& handler() const = 0;
  virtual certificates::Standing* standing() const = 0;
  // A whole request has come.
  virtual void OnRequest() = 0;
  // An endless body begins; each that did ends. RESOURCE_EXHAUSTED: there are too many.
  virtual absl::Status OnStream() = 0;
  virtual void OnStreamEnd() = 0;
};

// cpp-httplib's server parses and answers one connection here. It neither listens nor accepts: its
// own limits are for each read, and it has a thread for each request that anybody begins.
class Exchange : private httplib::Server {
 public:
  // All must outlive it. `stopping`: the server ends. `peer` as in Request.
  Exchange(ExchangeHost& host, Wire& wire, const std::atomic<bool>& stopping, std::string peer);

  // The caller's certificate is known from here on.
  void Authenticate(rpc::Identity caller, std::string certificate_pem);
  // Reads a request and answers it. False: the connection ends.
  bool Serve();

 private:
  // Ends an endless body when its certificate does.
  class Watch;

  void RefuseLine();
  void OnHead(httplib::Request& request);
  // Answer to a request that is refused by its head alone; absent: it is not.
  std::optional<Response> RefuseHead(const httplib::Request& request) const;
  HandlerResponse Route(const httplib::Request& request, httplib::Response& response);
  // Writes the body of an error that httplib has found.
  HandlerResponse Explain(const httplib::Request& request, httplib::Response& response);
  void Handle(const httplib::Request& request, httplib::Response& response);
  void Write(Response answer, httplib::Response& response);
  void Write(Streaming answer, httplib::Response& response);
  Request Translate(const httplib::Request& request) const;

  ExchangeHost& host_;
  Wire& wire_;
  const std::atomic<bool>& stopping_;
  const std::string peer_;
  rpc::Identity caller_;
  std::string certificate_pem_;
  // The body of a request is not read where it has no meaning, and a head that cannot be read is
  // not read to its end: nothing can follow either.
  bool ends_ = false;
  // This request has an answer of ours, maybe one without a body.
  bool answered_ = false;
};

}  // namespace meshrun::http
