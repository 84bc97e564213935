// The ucx engine of a process that is a rank of a world: its transport, and who tells it of deaths.
//
// All groups of the process share it (ProcessGroupOptions::engine). It ends with the last of them
// and of its holders. Threads: any. Errors: RendezvousError (no network device that UCX can use;
// the other ranks were not reached in time).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"

namespace c10d {
class Store;
}

namespace meshrun {

namespace agent {
class Agent;
}
namespace ucx {
class Engine;
}

struct UcxEngineOptions {
  int world_rank = 0;
  int world_size = 1;
  // Where peers may reach this host, the likeliest first (HubWatchOptions::addresses).
  std::vector<std::string> addresses = {"127.0.0.1"};
  // Where the ranks meet; not needed for a world of one, nor with an agent.
  c10::intrusive_ptr<c10d::Store> store;
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // A rank that meshrun launched has one: its daemon tells of deaths and of ranks that wait in
  // vain, and asks for flight records. Absent: the ranks tell each other
  // (ucx/engine/liveness/hub_watch.h).
  std::shared_ptr<agent::Agent> agent = nullptr;
  // How long ranks may wait for each other in vain (WaitReport::deadlock_after); absent: 3 s.
  std::optional<std::chrono::milliseconds> deadlock_after = std::nullopt;
};

// Called by all ranks of the world.
std::shared_ptr<ucx::Engine> start_ucx_engine(const UcxEngineOptions& options);

}  // namespace meshrun
