// Ranks that another library, such as MPI, has brought together already: what it knows of them, and
// the two calls by which they find each other's store. No LibTorch.
//
//   DistributedManager::initialize(bootstrap);   // on all of its ranks
//
// parallel/c_api/communicator.h makes one of an MPI communicator. Nothing is called after
// initialize() has returned, so the other library may end before or after this one.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshrun {

struct Bootstrap {
  // DistributedManager::initialization_method().
  std::string method = "MPI";
  int rank = 0;
  int world_size = 1;
  // Place among the ranks that share this host's memory, and the number of these.
  int local_rank = 0;
  int local_world_size = 1;
  // Hosts are numbered from 0, by their first ranks.
  int node_rank = 0;
  // Collective over all ranks, in the same order. They return when the values are there, and raise
  // any std::exception; then no rank calls them again.
  // Gives every rank the bytes of rank 0.
  std::function<void(void* data, size_t bytes)> broadcast;
  // Gives every rank the bytes of all, by rank.
  std::function<void(const void* own, void* all, size_t bytes)> all_gather;
};

// Why these numbers cannot be a rank's; empty: they can.
std::string problem_of(const Bootstrap& bootstrap);

// What a rank tells of itself first.
struct BootstrapReport {
  // Its place in the world that its DistributedManager has joined; size 0: it has joined none.
  int joined_rank = 0;
  int joined_size = 0;
  int node_rank = 0;
  // Among all processes that the launcher has started on this host; -1: it does not say.
  int launched_local_rank = -1;
  std::string problem;  // empty: none

  bool operator==(const BootstrapReport&) const = default;
};

// Collective. By rank.
std::vector<BootstrapReport> exchange_reports(const Bootstrap& bootstrap,
                                              const BootstrapReport& own);

// Where rank 0's store listens.
struct BootstrapMeeting {
  std::string problem;  // it does not, for this reason
  int port = 0;
  // A number that nobody else has: ranks meet only with ranks that know it.
  std::string token;
  // Rank 0's, the likeliest first; empty: all ranks are on its host.
  std::vector<std::string> addresses;

  bool operator==(const BootstrapMeeting&) const = default;
};

// Collective: rank 0's `own`, on every rank.
BootstrapMeeting exchange_meeting(const Bootstrap& bootstrap, const BootstrapMeeting& own);

// Collective. `reached`: whether this rank, or the one that tries for its host, has reached each of
// rank 0's addresses. The first that all ranks have reached; NOT_FOUND, on every rank, names a rank
// and the addresses.
absl::StatusOr<std::string> agree_on_address(const Bootstrap& bootstrap,
                                             const std::vector<std::string>& addresses,
                                             const std::vector<bool>& reached);

}  // namespace meshrun
