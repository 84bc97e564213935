// The HTTP server of both daemons: metrics, the JSON API and the page, on one port.
//
//   auto server = http::Server::Start({.listen = "unix:/run/user/1000/meshrun/coordinator.http",
//                                      .handler = [](const http::Request& request) { ... }});
//
// Who may connect is as on the gRPC port (core/rpc/security.h): over a Unix socket its directory's
// user, over TCP whoever shows a certificate that the cluster's authority has signed and that is
// neither denied nor past its end. What a caller may ask for is the handler's to decide, with
// rpc::CheckCall.
//
// A client that is slow or silent keeps nobody out: a request has a deadline for all of its bytes,
// an answer a least rate, and of the connections that have not made a request yet the one that has
// waited longest makes room for the next. A connection has one thread while it lasts.
//
// Threads: any. The handler is called on many at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/certificates/standing.h"
#include "core/http/message.h"
#include "core/rpc/security.h"

namespace meshrun::http {

struct Limits {
  // For the TLS handshake.
  std::chrono::milliseconds handshake{10'000};
  // For all bytes of a request, from its first one; for the first request, from the connection.
  std::chrono::milliseconds request{20'000};
  // Between two requests of a connection.
  std::chrono::milliseconds idle{75'000};
  // An answer, or a piece of an endless one, takes no longer than this and its bytes at the rate.
  std::chrono::milliseconds answer{10'000};
  size_t least_bytes_per_second = 32 << 10;
  // Connections, each with a thread.
  size_t connections = 256;
  size_t per_address = 128;
  // With a certificate.
  size_t per_user = 64;
  // Endless bodies; further ones are refused with 429.
  size_t streams = 160;
  size_t streams_per_user = 32;
  size_t head_bytes = 64 << 10;
  size_t body_bytes = 1 << 20;
};

class Server {
 public:
  struct Options {
    // unix:PATH, or HOST:PORT (port 0: any free one).
    std::string listen;
    rpc::Security security;
    Limits limits = {};
    // Asked about the certificate of each request and, while it lasts, of each endless body. Must
    // outlive the server. Null: TLS alone decides.
    certificates::Standing* standing = nullptr;
    Handler handler;
    // Names the program and its flag in errors.
    std::string_view program = "meshrun";
    std::string_view flag = "--http";
  };
  struct Counts {
    size_t open = 0;
    size_t streams = 0;
    // Since the start.
    uint64_t requests = 0;
    // Connections that were closed to make room for others, and those refused for want of it.
    uint64_t closed = 0;
    uint64_t refused = 0;
  };

  // Errors: those of rpc::CheckSecurity, rpc::SocketClaim and os::ListenOnTcp; NOT_FOUND or
  // INVALID_ARGUMENT names a TLS file that cannot be read.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options);
  virtual ~Server() = default;

  // Where clients connect: the address asked for, with the port that it got.
  virtual const std::string& address() const = 0;
  // 0 on a Unix socket.
  virtual int port() const = 0;
  virtual Counts counts() const = 0;
  // Ends the connections whose answers have no end, also where their readers are slow.
  virtual void EndStreams() = 0;
  // Ends all connections; returns when the handler runs no more. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace meshrun::http
