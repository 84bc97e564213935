// An in-memory network for tests: many ranks in one process, one thread or many, with faults.
//
// Messages up to `eager_bytes` are done when sent; longer ones only when the receiver has taken
// them, as UCX's rendezvous does. A seed decides which of the deliverable messages comes next, so a
// test visits orders that a fast network never shows, and each can be replayed.
#pragma once

#include <cstdint>
#include <memory>

#include "parallel/comm/ucx/engine/transport.h"

namespace meshrun::ucx {

class MemoryNetwork {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t eager_bytes = 8192;
    // At most so many messages are delivered by one progress(); 1 interleaves most.
    int deliveries_per_progress = 1;
    // Whether a dead rank's peers hear of it: as TCP (true) or as shared memory (false).
    bool tells_of_death = false;
  };

  explicit MemoryNetwork(const Options& options);
  ~MemoryNetwork();

  // The transports must end before the network.
  std::unique_ptr<Transport> create_transport();

  // As SIGKILL: nothing that this process sent later, or has not delivered, arrives.
  void kill(const Transport& transport);
  // Messages from or to it wait until `released`.
  void hold(const Transport& transport);
  void release(const Transport& transport);

  // Sum over all transports: what a test of byte counts compares.
  int64_t messages() const;
  int64_t bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun::ucx
