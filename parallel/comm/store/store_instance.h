// Attempts of ranks to meet at a store that may outlive an attempt. Each attempt has a part of the
// store to itself, so a rank never reads what an earlier attempt left.
//
//   instance/newest        the number of the attempt that rank 0 is making or made last
//   instance/after/<n>     there is an attempt that follows n; ranks that tried n wait here
//   instance/<n>/failed    some rank gave it up
//   instance/<n>/...       the part of attempt n
//
// Threads: one call at a time in a process. Errors: RendezvousError, and the store's own.
#pragma once

#include <chrono>
#include <cstdint>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace meshrun {

// What one process remembers of a meeting place between its attempts to meet the others there. An
// attempt has a number, its instance, which rank 0 gives, from 1 upwards; each leaves keys behind.
struct InstanceHistory {
  // The last one that this process took part in, however it ended; 0: none yet.
  int64_t last = 0;
  // The last one at which all ranks met, so that none of them can be behind it.
  int64_t complete = 0;
  // Between attempts: this process waits, or waited in vain, for the one that follows `last`.
  bool waiting = false;
  // Who the job was that this process met for last at the store's address, as this one or as
  // another; empty: none.
  std::string identity = {};
};

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
