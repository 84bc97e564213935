// PeerWatch without a daemon: every rank holds one TCP connection to rank 0, which tells the others
// when one breaks and keeps the WaitBoard.
//
//   rank 1 ──┐
//   rank 2 ──┼── rank 0 (the hub)        P - 1 sockets; a rank that dies is known in milliseconds
//   rank 3 ──┘
//
// The kernel closes a dead process's socket; a dead host's by keep-alive (2 s idle, 3 probes of 1
// s). When the hub dies, all lose it: rank 0 is the rank that is lost. A connection begins with a
// random token from the store, so that strangers are turned away. Binds to loopback where the
// master's address is loopback.
//
// Threads: one of its own, asleep in poll().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "parallel/comm/ucx/engine/peer_watch.h"

namespace meshrun::ucx {

struct HubWatchOptions {
  int world_rank = 0;
  int world_size = 1;
  // This host's address that peers reach.
  std::string address = "127.0.0.1";
  // The store: set once by rank 0, read (waiting) by the others.
  std::function<void(const std::string& value)> set_endpoint;
  std::function<std::string()> get_endpoint;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// UNAVAILABLE: rank 0's endpoint could not be bound or reached in time; names it.
absl::StatusOr<std::unique_ptr<PeerWatch>> create_hub_watch(const HubWatchOptions& options);

}  // namespace meshrun::ucx
