// The store that ranks meet at outside meshrun: c10d::TCPStore with a handshake, hosted by rank 0
// or by the launcher.
//
// What c10d's own rendezvous lacks: a rank of another job is refused with both identities named;
// two processes with one rank are found; missing ranks are named on every rank; a taken port is an
// error within two seconds; and after a cleanup a rank never meets the store that it left.
//
// Keys, below LaunchEnvironment::store_prefix:
//   identity            who the job is
//   instance/<last>     the instance that follows <last>; ranks that left an instance wait here for
//   the next <instance>/join/<rank>, <instance>/ready   everybody is here, or why not
//   <instance>/...      the store handed out
//
// Threads: one call at a time in a process. Errors: RendezvousError.
#pragma once

#include <chrono>
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
  // The instance this process used before; empty at first.
  std::string last_instance;
  std::chrono::milliseconds timeout = c10d::Store::kDefaultTimeout;
};

struct TcpRendezvous {
  // Keys of this instance alone.
  c10::intrusive_ptr<c10d::Store> store;
  std::string instance;
};

// Returns when all ranks have joined.
TcpRendezvous join_tcp_store(const TcpStoreOptions& options);

// The host name of every rank, in rank order, as told in joining.
std::vector<std::string> joined_hosts(c10d::Store& store, int world_size);

// Agrees on the next instance over a store that outlives it. Rank 0 names it; the others wait for
// the name.
std::string next_instance(c10d::Store& store, int rank, const std::string& last_instance);

}  // namespace meshrun
