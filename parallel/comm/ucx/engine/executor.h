// Carries out the operations of all groups of this process over one transport. Single-threaded and
// without clocks, sockets or waits of its own: events go in, progress() moves what can move, what
// others must do comes out. Engine (engine.h) puts threads around it; tests step many executors
// over one MemoryNetwork in seeded orders.
//
// Order: operations of a group start in the order of their sequence numbers and end in any. At most
// kMaxActive of a group run at once; kMaxQueued more wait, then submit() refuses (kAborted, "too
// many operations outstanding": a program that never waits).
//
// When something ends badly:
//   disagreement     the operation fails, on all ranks; the group goes on: no data had moved
//   verdict          the operations it names fail; the group goes on at the verdict's number
//   timeout          the operation fails, the group with it
//   peer lost, left  operations that still need it fail kGrace later (what it sent before may be on
//                    its way), the groups it is in with them; other groups go on
//   abort            all of the group's operations fail, the group with them
// A group that fails here tells the members it is connected to, once (kControl); who hears of it
// fails the group with the same sentence and passes it on. Receives are cancelled; requests that
// cannot be, and the memory they name, are kept until they are done or the transport closes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "parallel/comm/ucx/engine/address_book.h"
#include "parallel/comm/ucx/engine/algorithms.h"
#include "parallel/comm/ucx/engine/operation.h"
#include "parallel/comm/ucx/engine/peer_watch.h"
#include "parallel/comm/ucx/engine/transport.h"

namespace meshrun::ucx {

struct GroupConfig {
  std::string name;
  int rank = 0;
  int size = 1;
  std::vector<int> world_ranks;  // by rank in the group; absent: the same numbers
  // Told by the launcher, equal on all ranks; algorithms depend on it.
  bool one_host = true;
  bool check_headers = true;
};

// What one rank copied and sent: gates of the benchmarks, and metrics.
struct Counters {
  int64_t operations = 0;
  int64_t messages = 0;
  int64_t sent_bytes = 0;
  int64_t copied_bytes = 0;  // packed, unpacked, moved from input to output
  int64_t reduced_bytes = 0;
};

class Executor {
 public:
  static constexpr int kMaxActive = 16;
  static constexpr int kMaxQueued = 4096;
  static constexpr std::chrono::nanoseconds kGrace = std::chrono::milliseconds(200);

  // What others must do now; take() empties it.
  struct Wishes {
    // Their callbacks are due, and their memory may be let go. Destroy outside the lock.
    std::vector<std::shared_ptr<Operation>> finished;
    struct LookUp {
      uint32_t group;
      std::vector<int> ranks;
    };
    std::vector<LookUp> look_ups;
    std::vector<std::string> dumps;  // flight records, of a failure
  };

  Executor(std::unique_ptr<Transport> transport, const Clock& clock);
  ~Executor();

  // The number under which peers address this group; goes into its AddressRecord.
  uint32_t add_group(const GroupConfig& config);
  // Its unfinished operations fail (kAborted).
  void remove_group(uint32_t group);
  AddressRecord address_record(uint32_t group) const;

  std::shared_ptr<Operation> submit(uint32_t group, OperationSpec spec);
  std::shared_ptr<Operation> submit(uint32_t group, PointToPointSpec spec);

  // Events.
  void found(uint32_t group, int rank, std::optional<AddressRecord> record,
             const std::string& reason);
  void heard(const PeerNews& news);
  void abort(uint32_t group, const Failure& failure);

  // One round: transport, steps that became ready, deadlines. True: something moved.
  bool progress();
  Wishes take();

  // The earliest time at which progress() has something to do without an event; absent: none.
  std::optional<SteadyNanos> next_deadline() const;
  bool has_unfinished() const;
  // What this rank is blocked in, were it waiting for `operation`.
  WaitReport wait_report(const Operation& operation) const;
  // For a sentence about a timeout: ranks that `operation` still waits for.
  std::vector<int> missing_ranks(const Operation& operation) const;

  std::optional<Failure> group_failure(uint32_t group) const;
  uint64_t sequence(uint32_t group) const;
  const FlightRecorder& flight_recorder(uint32_t group) const;
  Counters counters() const;
  int local_ranks() const;
  Transport& transport();

  // Fails everything (kAborted) and closes the transport. Memory is free afterwards.
  void close(const std::string& reason);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun::ucx
