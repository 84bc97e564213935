// The coordinator's HTTP port. It outlives the server behind it: where a coordinator stops leading,
// its port stays, and says so until it leads again.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/door.h"
#include "core/http/routes.h"
#include "core/http/server.h"
#include "core/mutex.h"

namespace meshrun::coordinator {

// What --http stands for. "auto": beside the socket of `listen`, where DIRECTORY/NAME.sock has
// "unix:DIRECTORY/NAME.http", or nowhere where that is TCP. "none": nowhere. Nowhere is "".
std::string HttpAddress(const std::string& flag, const std::string& listen);

class HttpFront {
 public:
  struct Options {
    std::string listen;
    rpc::Security security;
    // Outlives the front; null without TLS.
    certificates::Standing* standing = nullptr;
    http::Limits limits = {};
  };
  // Errors: those of http::Server::Start.
  static absl::StatusOr<std::unique_ptr<HttpFront>> Open(Options options);
  ~HttpFront() { Stop(); }

  const std::string& address() const { return server_->address(); }
  http::Server::Counts counts() const { return server_->counts(); }

  // What is served from now on. Without routes all is answered with 503 and `why`. Returns when
  // nothing of the routes before is being called any more: their handlers are told
  // (http::Request::gone), and their endless bodies end, also those whose readers are slow.
  void Serve(http::Routes routes);
  void Withdraw(std::string why);
  // Ends all connections. Idempotent.
  void Stop();

 private:
  struct Served {
    http::Routes routes;
    std::atomic<bool> withdrawn{false};
  };

  HttpFront() = default;
  http::Answer Handle(const http::Request& request);
  void Replace(std::shared_ptr<Served> served, std::string why);

  Mutex mu_;
  std::shared_ptr<Served> served_ MESHRUN_GUARDED_BY(mu_);
  std::string why_ MESHRUN_GUARDED_BY(mu_) = "the coordinator is starting";
  std::unique_ptr<http::Server> server_;
};

// The front that --http asks for beside `door`, which outlives it; null: nowhere. Errors: those of
// HttpFront::Open.
absl::StatusOr<std::unique_ptr<HttpFront>> OpenHttpFront(const std::string& flag, const Door& door);

}  // namespace meshrun::coordinator
