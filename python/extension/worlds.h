// The worlds that this process is in: ranks that have met at a store, and the engine that all their
// groups share.
//
// torch.distributed's default group is a world. A group on this backend is a world of its own where
// the default group is on another one: then nobody has counted the job's ranks for us.
//
// An engine stays until no group uses it and the next group is made, or until end_worlds(). It
// never ends in a group's destructor, because Python may call that with its interpreter lock, which
// the engine's thread may be waiting for. That thread takes the lock to give a tensor back, and may
// not ask for it once the interpreter ends: Python ends threads that do. So nothing may be under
// way by then.
//
// Threads: any, without Python's interpreter lock. Errors: RendezvousError, EnvironmentError;
// BackendError in a child of fork() whose parent was in a world.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace c10d {
class ProcessGroup;
}

namespace meshrun {
class UcxBackend;
namespace ucx {
class Engine;
}
}  // namespace meshrun

namespace meshrun::python {

struct World {
  std::shared_ptr<ucx::Engine> engine;
  // The node of each rank; empty: all are on one.
  std::vector<int> nodes;
};

struct Meeting {
  // Its keys must be this world's own.
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{};
  bool is_default = false;
  // An address that all ranks have reached, any rank's; absent: MASTER_ADDR, which is rank 0's
  // unless a launcher hosts the store.
  std::optional<std::string> host = std::nullopt;
};

// All ranks call it.
std::shared_ptr<World> meet(const Meeting& meeting);

// The newest world that was made with is_default, while a group uses it; null: there is none.
std::shared_ptr<World> default_world();

// So that end_worlds() finds it. Not held.
void add_group(const c10::intrusive_ptr<UcxBackend>& group);

// The engine of a group that the manager made stays as long as those of worlds made here, whoever
// drops the group's last handle.
void hold_engine(c10d::ProcessGroup& group);

// Ends engines that no group uses.
void drop_unused_worlds();

// Before the interpreter ends: operations that are under way get a second, then all groups of this
// process leave; those ranks that still need it hear so.
void end_worlds();

}  // namespace meshrun::python
