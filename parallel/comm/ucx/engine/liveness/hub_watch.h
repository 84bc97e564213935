// PeerWatch without a daemon: every rank holds one TCP connection to rank 0, which tells the others
// when one breaks and keeps the WaitBoard.
//
//   rank 1 ──┐
//   rank 2 ──┼── rank 0 (the hub)        P - 1 sockets; a rank that dies is known in milliseconds
//   rank 3 ──┘
//
// The kernel closes a dead process's socket; a dead host's by keep-alive (2 s idle, 3 probes of 1
// s). When the hub dies, all lose it: rank 0 is the rank that is lost. A connection begins with a
// random token from the store, so that strangers are turned away. The hub listens at all addresses
// of its host, or at 127.0.0.1 alone where that is where its peers are told to look.
//
// A forked child has no part in it: there stop() and the destructor do nothing.
//
// Limits: once rank 0 has left or died, nobody tells of the others. A rank that dies while children
// that it forked live on (they hold its socket, unless they called exec) is not seen to be dead.
// A report or a verdict above 1 MiB is not sent: then the timeout decides.
//
// On the wire, frames: their length in four bytes, the lowest first, and so many bytes.
//   to the hub     "hello <token> <rank>", then "waits <WaitReport>", "runs" (no thread is blocked
//                  any more), and "bye" at the end
//   from the hub   "lost <rank> <reason>", "left <rank>" (a late rank hears of all); "verdict
//                  <WaitVerdict>"
//
// Threads: one of its own, asleep in poll(). report() and withdraw() only leave it a note; the last
// one counts.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/comm/ucx/engine/liveness/peer_watch.h"

namespace meshrun::ucx {

// A warning in the log of this process.
void log_suspicion(const std::string& sentence);

struct HubWatchOptions {
  int world_rank = 0;
  int world_size = 1;
  // Where peers may reach this host, names or numbers, the likeliest first: each peer tries one
  // after the other. Only rank 0's are used. If the first is a loopback address, the hub listens at
  // 127.0.0.1 alone.
  std::vector<std::string> addresses = {"127.0.0.1"};
  // The store: set once by rank 0, read (waiting) by the others.
  std::function<void(const std::string& value)> set_endpoint;
  std::function<std::string()> get_endpoint;
  // For connecting; get_endpoint has its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Rank 0's: where a sentence about a possible cycle goes (WaitBoard::Suspect). On the thread of
  // the watch.
  std::function<void(const std::string& sentence)> suspect = log_suspicion;
};

// Rank 0 does not wait for the others. UNAVAILABLE: rank 0's endpoint could not be bound or reached
// in time; names it.
absl::StatusOr<std::unique_ptr<PeerWatch>> create_hub_watch(const HubWatchOptions& options);

}  // namespace meshrun::ucx
