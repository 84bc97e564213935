// The coordinator as a value: state, loop, services and listening socket in one process.
//
//   auto server = Server::Start({.listen = "unix:/run/user/1000/trial/c.sock"});
//   Connect((*server)->address());
//
// Stops when it is destroyed.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/door.h"
#include "coordinator/event_loop/audit_file.h"
#include "coordinator/http_front.h"
#include "coordinator/leadership/leadership.h"
#include "coordinator/state_store/state_store.h"
#include "core/clock.h"
#include "core/rpc/acceptor.h"
#include "core/rpc/loop_health.h"
#include "core/rpc/security.h"

namespace meshrun::coordinator {

class CoordinatorMetrics;

class Server {
 public:
  struct Options {
    // unix:PATH, or with TLS host:port (port 0: any free one). Empty: rpc::DefaultListenAddress.
    std::string listen;
    rpc::Security security;
    // Where to listen in place of the two above; outlives the server. Null: a door of its own.
    Door* door = nullptr;
    // Outlives the server. Null: there is no other coordinator.
    const Leadership* leadership = nullptr;
    // This coordinator among the others.
    std::string name;
    // What the store is, for people; empty: "sqlite", or "memory" where it is null.
    std::string state_engine;
    // Called when the state is restored, and the door must be free.
    std::function<void()> before_serving;
    // Null: in memory, ends with the server. Whether it holds a copy is said in it
    // (state_store/state_copy.h).
    std::unique_ptr<StateStore> store;
    SteadyNanos lease = std::chrono::seconds(5);
    SteadyNanos heartbeat = std::chrono::seconds(1);
    v1::Retention retention = {};
    v1::Quarantine quarantine = {};
    v1::Policy policy = {};
    std::string record_path;
    // Null: the audit has no file.
    std::unique_ptr<AuditFile> audit_file;
    const Clock* clock = &Clock::Real();
    rpc::LoopHealth::Options health;
    // On a TCP address.
    rpc::Acceptor::Limits connections;
    // Where the page, the JSON API and /metrics are served: as of HttpAddress.
    std::string http;
    // In place of `http`; outlives the server. Null: a port of its own.
    HttpFront* front = nullptr;
    // What the process has counted so far; outlives the server. Null: it begins with the server.
    CoordinatorMetrics* metrics = nullptr;
  };

  // INVALID_ARGUMENT (address or TLS files), PERMISSION_DENIED (the socket's directory is open to
  // other users), ALREADY_EXISTS (the address is taken), and the errors of the store.
  static absl::StatusOr<std::unique_ptr<Server>> Start(Options options);
  virtual ~Server() = default;

  // Where clients connect: the address asked for, with the port that it got.
  virtual const std::string& address() const = 0;
  // 0 on a Unix socket.
  virtual int port() const = 0;
  // As address, of Options::http; empty: there is none.
  virtual std::string http_address() const = 0;
  virtual uint64_t term() const = 0;
  // In place of Options::policy from now on.
  virtual void SetPolicy(v1::Policy policy) = 0;
  virtual void ReopenAuditFile() = 0;
  // Something that people should know, as an event.
  virtual void Note(const std::string& kind, const std::string& message) = 0;
  // Ends calls and sessions with UNAVAILABLE; returns when all have ended. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace meshrun::coordinator
