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
//   identity               who the job is, and its settings where rank 0 hosts the store
//   instance/<n>/settings  rank 0's settings, in a launcher's store
//   rank0                  which process is rank 0
//   refused                why a rank of this job could not join: rank 0 gives the attempt up
//   instance/<n>/join/<rank>, instance/<n>/ready   everybody is here, or why not
//   instance/...           the attempts (store_instance.h); instance/<n>/... is handed out
//
// Threads: one call at a time in a process. Errors: RendezvousError.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "core/os/fd.h"
#include "parallel/comm/store/store_instance.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

struct TcpStoreOptions {
  std::string host;
  int port = 0;
  int rank = 0;
  int world_size = 1;
  // The launcher hosts the store: rank 0 connects as a client too.
  bool is_hosted = false;
  // Rank 0's, if it listens at the port already; null: it opens the port. The store takes it.
  std::shared_ptr<os::UniqueFd> listener = nullptr;
  std::string prefix;
  // Compared between ranks; equal within a job.
  std::string identity;
  std::chrono::milliseconds timeout = c10d::Store::kDefaultTimeout;
  // What this rank tells the others of itself in joining: one line. Called when the store has been
  // reached.
  std::function<std::string()> introduction = nullptr;
};

// Returns, when all ranks have joined, the store of this instance alone. `history` is up to date
// also after an error.
c10::intrusive_ptr<c10d::Store> join_tcp_store(const TcpStoreOptions& options,
                                               InstanceHistory& history);

// The introduction of every rank, in rank order.
std::vector<std::string> introductions(c10d::Store& store, int world_size);

}  // namespace meshrun
