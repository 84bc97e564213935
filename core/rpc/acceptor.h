// Accepts the TCP connections of a gRPC server, within limits: gRPC itself takes as many as there
// are descriptors, from anybody, and stands still when there are none left.
//
// A connection is unproven until a call on it has been let in. Of too many unproven ones, of one
// address or in all, the one that has waited longest is closed, so that whoever holds connections
// and says nothing keeps nobody else out, not even from his own address. Beyond the limit of all,
// new ones are refused. A proven connection is closed only where its owner floods the server
// (CloseBusiest).
#pragma once

#include <grpcpp/server_builder.h>

#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "core/mutex.h"
#include "core/os/fd.h"

namespace meshrun::rpc {

class Acceptor {
 public:
  struct Limits {
    // With those that are proven.
    size_t per_address = 4096;
    size_t unproven_per_address = 512;
    size_t unproven = 2048;
    // Proven ones of one owner; 0: an eighth of all.
    size_t per_owner = 0;
    // 0: half of what the limit of descriptors leaves beside 256 for other uses, since each
    // connection takes two.
    size_t in_all = 0;
  };

  // Binds and listens at HOST:PORT (port 0: any free one); 0.0.0.0 and [::] are all addresses of
  // both families. Connections wait until Start. INVALID_ARGUMENT: HOST has no address, or PORT is
  // none. ALREADY_EXISTS: it is taken, or not this host's.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const std::string& address,
                                                          const Limits& limits);
  ~Acceptor() { Stop(); }

  int port() const { return port_; }
  // `builder`'s server takes the connections. Before it is built; again, for another server, after
  // Stop: connections that come meanwhile wait.
  void Serve(grpc::ServerBuilder& builder, std::shared_ptr<grpc::ServerCredentials> credentials);
  // After the server has started.
  void Start();
  // Accepts nothing more. Before the server is shut down. Idempotent.
  void Stop();

  // A call of `peer` (grpc::ServerContext::peer) has been let in. `owner`: whose certificate it
  // shows, empty without TLS. Thread-safe.
  void Prove(std::string_view peer, std::string_view owner);
  // `owner` makes many more calls than are let in. Nobody knows on which connection: gRPC names it
  // only for calls that reach a service. Of the owner's connections those are closed that have
  // received much since the last time that this was called; where there are none, of the unproven
  // ones. A stream of headers keeps one of gRPC's threads, and what else waits for that.
  // Thread-safe.
  void CloseBusiest(std::string_view owner);

  struct Counts {
    size_t open = 0;
    size_t unproven = 0;
    // Since the start.
    uint64_t closed = 0;
    uint64_t refused = 0;
  };
  Counts counts() const;

 private:
  struct Connection {
    // A second descriptor of the socket, beside gRPC's: tells of its end, and can end it.
    os::UniqueFd socket;
    std::string address;
    // As gRPC writes it, without percents.
    std::string peer;
    // Its place among those of its address, while it waits.
    std::list<int>::iterator place;
    // Neither proven nor closed.
    bool waits = true;
    std::string owner;
    // Bytes received, when CloseBusiest was last called.
    uint64_t received = 0;
  };
  struct Address {
    size_t open = 0;
    // Keys in connections_, the one that came first in front.
    std::list<int> unproven;
  };

  Acceptor(const Limits& limits, std::vector<os::UniqueFd> listeners, int port);
  void Run();
  // False: nothing waits there.
  bool AcceptOne(int listener);
  // False: it is refused.
  bool Admit(const os::UniqueFd& socket, std::string address, std::string peer);
  void CloseOldest(Address& address) MESHRUN_REQUIRES(mu_);
  void CloseOldestOfAll() MESHRUN_REQUIRES(mu_);
  void Close(int key, const Connection& connection) MESHRUN_REQUIRES(mu_);
  // It is proven, closed or gone.
  void StopsWaiting(Connection& connection, int key) MESHRUN_REQUIRES(mu_);
  void Forget(int key) MESHRUN_REQUIRES(mu_);
  // No descriptor is left.
  void OnExhausted();
  void TellRefusals() MESHRUN_REQUIRES(mu_);

  const Limits limits_;
  const std::vector<os::UniqueFd> listeners_;
  const int port_;
  os::UniqueFd events_;
  os::UniqueFd stop_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> server_;
  std::thread thread_;

  mutable Mutex mu_;
  // By the number of their own descriptor.
  std::unordered_map<int, Connection> connections_ MESHRUN_GUARDED_BY(mu_);
  // Keys in connections_ by peer; only of those that wait.
  std::unordered_map<std::string, int> unproven_ MESHRUN_GUARDED_BY(mu_);
  std::map<std::string, Address> addresses_ MESHRUN_GUARDED_BY(mu_);
  // Proven connections of each owner.
  std::unordered_map<std::string, size_t> owners_ MESHRUN_GUARDED_BY(mu_);
  Counts counts_ MESHRUN_GUARDED_BY(mu_);
  // What the log has not said yet, and when it last said something.
  uint64_t untold_closed_ MESHRUN_GUARDED_BY(mu_) = 0;
  uint64_t untold_refused_ MESHRUN_GUARDED_BY(mu_) = 0;
  std::string untold_address_ MESHRUN_GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point told_at_ MESHRUN_GUARDED_BY(mu_);
  // By CloseBusiest.
  std::chrono::steady_clock::time_point looked_at_ MESHRUN_GUARDED_BY(mu_);
};

}  // namespace meshrun::rpc
