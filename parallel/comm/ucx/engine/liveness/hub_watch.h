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
// Limits: once rank 0 has left or died, nobody tells of the others. A rank that dies while children
// that it forked live on (they hold its socket, unless they called exec) is not seen to be dead.
// What a report or a verdict needs beyond 1 MiB is not sent: then the timeout decides.
//
// On the wire, frames: their length in four bytes, the lowest first, and so many bytes.
//   to the hub     "hello <token> <rank>", then "waits <WaitReport>", "runs" (it is blocked no
//                  longer), and "bye" at the end
//   from the hub   "lost <rank> <reason>", "left <rank>"; who comes late hears of all;
//                  "verdict <WaitVerdict>"
//
// Threads: one of its own, asleep in poll(). report() and withdraw() only leave it a note, the
// last of which counts.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "parallel/comm/ucx/engine/liveness/peer_watch.h"

namespace meshrun::ucx {

struct HubWatchOptions {
  int world_rank = 0;
  int world_size = 1;
  // This host's address that peers reach. Only rank 0's is used.
  std::string address = "127.0.0.1";
  // The store: set once by rank 0, read (waiting) by the others.
  std::function<void(const std::string& value)> set_endpoint;
  std::function<std::string()> get_endpoint;
  // For connecting; get_endpoint has its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// Rank 0 does not wait for the others. UNAVAILABLE: rank 0's endpoint could not be bound or reached
// in time; names it.
absl::StatusOr<std::unique_ptr<PeerWatch>> create_hub_watch(const HubWatchOptions& options);

}  // namespace meshrun::ucx
