// The store that ranks meet at outside meshrun: c10d::TCPStore with a handshake, hosted by rank 0
// or by the launcher.
//
// It adds what c10d's own rendezvous lacks. It refuses a rank of another job, and names both
// identities. It finds two processes with one rank. It tells ranks of one job that their settings
// (the world's size) differ. It names missing ranks on every rank. It reports a taken port within
// three seconds. And after a cleanup, or a join that failed, a rank never reads what was left in
// the store.
//
// Keys, below LaunchEnvironment::store_prefix:
//   identity               who the job is
//   rank0                  which process is rank 0
//   refused                why a rank of this job could not join: rank 0 gives the attempt up
//   instance/newest        the number of the attempt that rank 0 is making or made last
//   instance/after/<n>     there is an attempt that follows n; ranks that tried n wait here
//   instance/<n>/join/<rank>, instance/<n>/ready   everybody is here, or why not
//   instance/<n>/failed    some rank gave it up
//   instance/<n>/...       the store handed out
//
// Threads: one call at a time in a process. Errors: RendezvousError.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

struct TcpStoreOptions {
  std::string host;
  int port = 0;
  int rank = 0;
  int world_size = 1;
  // The launcher hosts the store: rank 0 connects as a client too.
  bool is_hosted = false;
  std::string prefix;
  // Compared between ranks; equal within a job.
  std::string identity;
  std::chrono::milliseconds timeout = c10d::Store::kDefaultTimeout;
  // What this rank tells the others of itself in joining: one line. Called when the store has been
  // reached.
  std::function<std::string()> introduction = nullptr;
};

// What one process remembers of a meeting place between its attempts to meet the others there. An
// attempt has a number, its instance, which rank 0 gives, from 1 upwards; each leaves keys behind.
struct InstanceHistory {
  // The last one that this process took part in, however it ended; 0: none yet.
  int64_t last = 0;
  // The last one at which all ranks met, so that none of them can be behind it.
  int64_t complete = 0;
  // Between attempts: this process waits, or waited in vain, for the one that follows `last`.
  bool waiting = false;
};

// Returns, when all ranks have joined, the store of this instance alone. `history` is up to date
// also after an error.
c10::intrusive_ptr<c10d::Store> join_tcp_store(const TcpStoreOptions& options,
                                               InstanceHistory& history);

// The introduction of every rank, in rank order.
std::vector<std::string> introductions(c10d::Store& store, int world_size);

// Agrees on the next instance over a store that may outlive it, and returns its part of the store.
// Rank 0 begins it; the others wait for one that they have not tried and nobody gave up, and take
// the newest: a rank that missed some attempts of the others, or made some without them, still
// finds them.
c10::intrusive_ptr<c10d::Store> enter_instance(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               InstanceHistory& history,
                                               std::chrono::milliseconds timeout);

// As enter_instance, for a store that is new and belongs to these ranks alone: the coordinator
// gives each generation one. There the first attempt of all ranks is the first instance, and rank 0
// need not announce it. Costs one call.
c10::intrusive_ptr<c10d::Store> enter_fresh_instance(c10::intrusive_ptr<c10d::Store> store,
                                                     int rank, InstanceHistory& history,
                                                     std::chrono::milliseconds timeout);

// Says in an instance's store that it is given up, so that ranks yet to come wait for the next.
// Never raises: the store may be gone.
void give_up_instance(c10d::Store& store) noexcept;

}  // namespace meshrun
