// Where calls come in: the address of a coordinator, and who is let in there. It stays the same
// while servers come and go behind it, that of a standby and that of a leader: nobody else can
// bind the address meanwhile, and connections that come between two servers wait.
//
//   Door::Open -> { Serve -> BuildAndStart -> Begin -> ... -> End -> Shutdown } as often as wanted
//
// Threads: one owner. gate(), standing() and acceptor() are thread-safe.
#pragma once

#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/services/call_gate.h"
#include "core/certificates/standing.h"
#include "core/clock.h"
#include "core/rpc/acceptor.h"
#include "core/rpc/security.h"
#include "core/rpc/unix_socket.h"
#include "meshrun/v1/state.pb.h"

namespace meshrun::coordinator {

class Door {
 public:
  struct Options {
    // unix:PATH, or with TLS host:port (port 0: any free one). Empty: rpc::DefaultListenAddress.
    std::string listen;
    rpc::Security security;
    // On a TCP address.
    rpc::Acceptor::Limits connections;
    const Clock* clock = &Clock::Real();
  };
  // INVALID_ARGUMENT (address or TLS files), PERMISSION_DENIED (the socket's directory is open to
  // other users), ALREADY_EXISTS (the address is taken).
  static absl::StatusOr<std::unique_ptr<Door>> Open(Options options);
  ~Door() { End(); }

  // The address that was asked for, with the port that it got.
  const std::string& address() const { return address_; }
  // 0 on a Unix socket.
  int port() const { return acceptor_ == nullptr ? 0 : acceptor_->port(); }
  // True where a caller shows a certificate: else all are one user.
  bool KnowsCallers() const;
  const rpc::Security& security() const { return options_.security; }
  // Null without TLS.
  certificates::Standing* standing() const { return standing_.get(); }
  // Null on a Unix socket.
  rpc::Acceptor* acceptor() const { return acceptor_.get(); }
  CallGate& gate() const { return *gate_; }

  // Told of each call that is turned away before it is read. Calls that gRPC has not matched to a
  // service yet may outlive their server. Thread-safe.
  using OnRefused =
      std::function<void(const v1::Caller& who, std::string_view method, const absl::Status& why)>;
  // Whether a call is let in, whatever port it came to; as Serve asks.
  rpc::CallAdmission Admission(bool reads, OnRefused on_refused) const;
  // The server of `builder`, whose health and reflection are enabled too, is to listen here.
  // `reads`: it reports to gate() which requests it has read. Errors: those of the TLS files.
  absl::Status Serve(grpc::ServerBuilder& builder, bool reads, OnRefused on_refused);
  // After BuildAndStart. ALREADY_EXISTS: the address of a Unix socket is taken.
  absl::Status Begin(const grpc::Server* server);
  // Before the server shuts down. Idempotent.
  void End();

 private:
  Door(Options options, std::shared_ptr<certificates::Standing> standing,
       std::unique_ptr<rpc::Acceptor> acceptor);

  const Options options_;
  std::string address_;
  const std::shared_ptr<certificates::Standing> standing_;
  // Shared with the gate, which calls may hold beyond our end.
  const std::shared_ptr<rpc::Acceptor> acceptor_;
  const std::shared_ptr<CallGate> gate_;
  rpc::SocketClaim claim_;
  // What gRPC says of the Unix socket: 0 where it could not be bound.
  int unix_socket_ = 1;
};

}  // namespace meshrun::coordinator
