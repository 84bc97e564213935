// The steps of DistributedManager::initialize(): from the launcher's environment to a world whose
// ranks have met.
//
// Threads: one call at a time. Errors: EnvironmentError, RendezvousError.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "c10/util/intrusive_ptr.h"
#include "core/os/fd.h"
#include "parallel/comm/store/tcp_store.h"
#include "parallel/manager/bootstrap.h"
#include "parallel/manager/mesh_layout.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

struct World {
  // Known from the start.
  std::string method;
  bool distributed = false;
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds rendezvous_timeout = c10d::Store::kDefaultTimeout;
  // Timeout of collectives; absent: the backend's own.
  std::optional<std::chrono::milliseconds> timeout;
  // MESHRUN_DEADLOCK_SECONDS.
  std::optional<std::chrono::milliseconds> deadlock_after;
  // MODEL_PARALLEL_SIZE.
  std::optional<int> model_parallel_size;
  std::shared_ptr<agent::Agent> agent;
  // Empty without --mesh.
  MeshLayout mesh;

  // How the ranks meet if no daemon brings them together.
  std::string master_addr;
  int master_port = 0;
  bool store_is_hosted = false;
  // Rank 0's, if a port was opened for its store before; null: the store opens master_port.
  std::shared_ptr<os::UniqueFd> listener;
  std::string store_prefix;
  std::string identity;

  // Known after join(), or earlier if the launcher says it; until then -1.
  int local_rank = -1;
  int local_world_size = -1;
  int node_rank = -1;
  // The launcher's numbers for this world's ranks on this host, this rank's first, where the world
  // may be a part of what was launched. Empty: unknown, or local_rank is the launcher's.
  std::vector<int> launched_local_ranks;
  // The node of each rank; empty: all are on one.
  std::vector<int> nodes;
  // This host's address for its peers.
  std::string address = "127.0.0.1";
  // Rank 0's: where peers may reach what it listens at, the likeliest first.
  std::vector<std::string> addresses_of_rank_zero = {"127.0.0.1"};
  c10::intrusive_ptr<c10d::Store> store;
};

// As the environment says, connecting to the daemon where there is one (`agent`, if given, is that
// connection).
World find_world(const std::optional<std::string>& method,
                 std::optional<std::chrono::milliseconds> timeout,
                 std::shared_ptr<agent::Agent> agent);

// As DistributedManager::setup() is told, and MESHRUN_TIMEOUT_SECONDS.
World given_world(int rank, int world_size, std::optional<int> local_rank, const std::string& addr,
                  const std::string& port, const std::string& method);

// Collective over the ranks of `bootstrap`: opens rank 0's store and tells all ranks where it is.
// What one rank finds wrong, all raise. `joined`: the world that this process is in, null for none.
// Absent: all ranks are in the world of these ranks already; it is an error if they are in another.
std::optional<World> bootstrapped_world(const Bootstrap& bootstrap, const World* joined,
                                        std::optional<std::chrono::milliseconds> timeout);

// Names the store at which the ranks meet; an InstanceHistory records what earlier worlds left
// there.
std::string meeting_place(const World& world);

// Brings the ranks to one store. `history` is this process's for the meeting place.
void join(World& world, InstanceHistory& history);

}  // namespace meshrun
