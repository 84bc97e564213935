// An in-memory network for tests: many ranks in one process, one thread or many, with faults.
//
// A seed decides which of the deliverable messages comes next, so a test visits orders that a fast
// network never shows; in one thread each can be replayed. Only what Transport promises is kept:
// messages of one sender with different tags overtake each other.
//
//   send, up to eager_bytes    copied, done at once; done when delivered where `fifo_slots` of its
//                              messages wait for the peer already, as when UCX's queue is full
//   send, longer               announced; the receiver copies from the sender's memory one delivery
//                              after it has matched the announcement; then both are done
//
// All of this but the seeds is what UCX 1.13 was seen to do (tests/parallel/comm/ucx).
//
// When a rank is killed, what it sent and has not been delivered is lost; announcements that have
// been delivered stay. When it closes its transport instead, small messages under way still arrive.
//
//                                      tells_of_death = false          = true
//                                      (shared memory)                 (TCP)
//   its peers                          hear nothing                    hear at once: a broken peer
//   small sends to it                  fill its queue, then stay       fail at once
//   large sends to it                  are never done                  fail
//   receives of what it announced      fail, tell of a broken peer     are abandoned
//   connect() to it                    a broken peer                   a broken peer
#pragma once

#include <cstdint>
#include <memory>

#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

class MemoryNetwork {
 public:
  struct Options {
    uint64_t seed = 0;
    int64_t eager_bytes = 8192;
    // Small messages from one rank to another that may be under way at once.
    int fifo_slots = 64;
    // At most so many messages are delivered by one progress(); 1 interleaves most.
    int deliveries_per_progress = 1;
    // Whether a dead rank's peers hear of it.
    bool tells_of_death = false;
  };

  explicit MemoryNetwork(const Options& options);
  ~MemoryNetwork();

  // The transports must end before the network.
  std::unique_ptr<Transport> create_transport();

  // As SIGKILL: nothing that this process sent later, or has not delivered, arrives. Its memory is
  // not touched any more; calls on its transport do nothing.
  void kill(const Transport& transport);
  // Messages from or to it wait until release().
  void hold(const Transport& transport);
  void release(const Transport& transport);

  // Sum over all transports: what a test of byte counts compares.
  int64_t messages() const;
  int64_t bytes() const;

 private:
  class Impl;
  class Member;
  class Endpoint;

  static int index_of(const Transport& transport);

  std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun::ucx
