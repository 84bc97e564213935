// How the processes that c10d's reconfigure() names meet, whichever processes have gone before.
//
// Each process hosts a small store, and its handle says where:
//
//   meshrun://10.0.0.7:41523/k3x9w2r8p4    address, port, and a random text that tells this store
//                                          from another one that gets the same port later
//
// The members meet at the store of the first handle in text order, which all of them know alike:
//
//   <random>/self                    set by the host
//   <random>/<uuid>/members          the list of the member that came first; the others compare
//   <random>/<uuid>/here/<rank>      this member has the same list
//   <random>/<uuid>/verdict          "ok" of the last that comes, or why not: of the first that has
//                                    found another list, or has waited for too long
//   <random>/<uuid>/read/<rank>      this member has read that there is no world
//   <random>/<uuid>/world/...        the new world's own
//
// The verdict is written once, so all members that reach it go on, or all raise the same.
//
// Threads: one call at a time. Errors: CollectiveArgumentError and, where lists differ,
// CollectiveMismatchError (ValueErrors); RendezvousError; BackendError in a child of fork().
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "third_party/libtorch/reconfigure.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun::python {

// The members of the next world.
struct Members {
  int64_t uuid = 0;
  std::vector<std::string> handles;  // by rank
  int rank = 0;                      // this process's
  // The address of the store at which they meet.
  std::string host;
};

// Hosts this process's store as long as it lives, which is as long as a world needs it.
class MeetingPlace {
 public:
  // At an address that peers reach: this host's on the way to MASTER_ADDR, else that of its first
  // interface.
  MeetingPlace();

  const std::string& handle() const { return handle_; }

  // Checks what this process alone can see. A vector's order is that of the ranks; a set is sorted.
  Members members_of(const libtorch::ReconfigureOptions& options) const;

  // All members call it. The store of the new world alone.
  c10::intrusive_ptr<c10d::Store> meet(const Members& members,
                                       std::chrono::milliseconds timeout) const;

 private:
  const int forks_;
  std::string handle_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace meshrun::python
