// Carries out the operations of all groups of this process over one transport. Single-threaded and
// without clocks, sockets or waits of its own: events go in, progress() moves what can move, what
// others must do comes out. Engine (engine.h) puts threads around it; tests step many executors
// over one MemoryNetwork in seeded orders.
//
// Order: collectives of a group start in the order of their sequence numbers and end in any. At
// most kMaxActive of a group run at once, none beside one that is 2^16 older (tag.h), and kMaxQueued
// more wait. Sends and receives start at once, since two ranks may post them in any order; receives
// are matched in the order of submission. A group with kMaxQueued collectives waiting, or
// kMaxPointToPoint sends and receives under way, is full: try_submit() refuses, and Engine waits for
// room.
//
// When something ends badly:
//   disagreement     the operation fails, on all ranks; the group goes on: no data had moved. So
//                    does one whose schedule has more messages than tags number, on any rank
//   verdict          the operations it names fail; the group goes on at the verdict's number
//   timeout          the operation fails, the group with it
//   peer lost, left  operations that still need it fail kGrace later (what it sent before may be on
//                    its way or unread), and their groups with them; so do later ones
//   abort            all of the group's operations fail, the group with them
// A group that fails here tells the members it is connected to, once (kControl); who hears of it
// fails the group with the same sentence and passes it on. Receives are cancelled; requests that
// cannot be, and the memory they name, are kept until they are done or the transport closes; memory
// that a peer may write to (shared_heap.h) until it says that it is through, or its process has
// ended: after news that it is gone the kernel is asked. Else for ever.
// A collective whose time is up first asks the members how far they are, for at most kAskFor, so
// that the sentence names who has not called it and not who waits for that rank, too.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/clock.h"
#include "parallel/comm/ucx/engine/execution/operation.h"
#include "parallel/comm/ucx/engine/liveness/peer_watch.h"
#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/protocol/address_book.h"
#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

struct GroupConfig {
  std::string name;
  int rank = 0;
  int size = 1;
  std::vector<int> world_ranks;  // by rank in the group; absent: the same numbers
  int world_rank(int of) const { return world_ranks.empty() ? of : world_ranks[of]; }
  // Told by the launcher, equal on all ranks; algorithms depend on it.
  bool one_host = true;
  bool check_headers = true;
  // Equal on all ranks: shorter messages are not worth an offer of memory (shared_heap.h).
  int64_t least_offered = 4 << 10;
};

// What one rank copied and sent: gates of the benchmarks, and metrics.
struct Counters {
  int64_t operations = 0;
  int64_t messages = 0;
  int64_t sent_bytes = 0;
  int64_t copied_bytes = 0;  // staged, moved from input to output
  int64_t pushed_bytes = 0;  // of the sent ones: written into the receiver's memory
  int64_t reduced_bytes = 0;
};

class Executor {
 public:
  static constexpr int kMaxActive = 16;
  static constexpr int kMaxQueued = 4096;
  // A program may post all its receives before the sends that they wait for: so many more.
  static constexpr int kMaxPointToPoint = 65536;
  static constexpr std::chrono::nanoseconds kGrace = std::chrono::milliseconds(200);
  static constexpr std::chrono::nanoseconds kAskFor = std::chrono::milliseconds(100);
  // Of scratch memory that no operation uses, so many pieces and bytes are kept for the next ones.
  static constexpr size_t kFreeScratch = 4;
  static constexpr int64_t kFreeScratchBytes = 32 << 20;
  // A round copies and reduces so much, or one step of a reduction, before it returns.
  static constexpr int64_t kRoundBytes = 512 << 10;

  // What others must do now; take() empties it.
  struct Actions {
    // Their callbacks are due.
    absl::InlinedVector<std::shared_ptr<Operation>, 2> finished;
    // The caller's, of operations that no longer touch it. Destroy outside the lock.
    absl::InlinedVector<std::shared_ptr<void>, 2> memory;
    struct LookUp {
      uint32_t group;
      std::vector<int> ranks;
    };
    std::vector<LookUp> look_ups;
    std::vector<std::string> dumps;  // flight records, of a failure

    bool empty() const {
      return finished.empty() && memory.empty() && look_ups.empty() && dumps.empty();
    }
  };

  // `host` is that of the AddressRecord. `heap` outlives it; null: peers write nothing into this
  // rank's memory.
  Executor(std::unique_ptr<Transport> transport, const Clock& clock, uint64_t host = 0,
           SharedHeap* heap = nullptr);
  ~Executor();

  // The number under which peers address this group; goes into its AddressRecord. 0: this process
  // has made as many groups as tags can number.
  uint32_t add_group(const GroupConfig& config);
  // Its unfinished operations fail (kAborted), here and on the other ranks.
  void remove_group(uint32_t group);
  AddressRecord address_record(uint32_t group) const;

  // Null, and `spec` is as it was: the group is full.
  std::shared_ptr<Operation> try_submit(uint32_t group, OperationSpec&& spec);
  std::shared_ptr<Operation> try_submit(uint32_t group, PointToPointSpec&& spec);
  // Even to a full group. The operation's timeout counts from `since`; absent: from now.
  std::shared_ptr<Operation> submit(uint32_t group, OperationSpec&& spec,
                                    std::optional<SteadyNanos> since = std::nullopt);
  std::shared_ptr<Operation> submit(uint32_t group, PointToPointSpec&& spec,
                                    std::optional<SteadyNanos> since = std::nullopt);
  // For collectives, or for sends and receives. False on a group that has failed.
  bool is_full(uint32_t group, bool is_point_to_point) const;

  // Events.
  void found(uint32_t group, int rank, std::optional<AddressRecord> record,
             const std::string& reason);
  void heard(const PeerNews& news);
  void abort(uint32_t group, const Failure& failure);

  // One round: transport, steps that became ready, deadlines. True: something moved, or more is
  // ready.
  bool progress();
  bool has_actions() const;
  Actions take();

  // The earliest time at which progress() has something to do without an event; absent: none.
  // It may be too early, never too late.
  std::optional<SteadyNanos> next_deadline() const;
  bool has_unfinished() const;
  // Whether any with Drive::kThread is.
  bool has_unfinished_for_thread() const;
  void set_drive(Operation& operation, Drive drive);
  // What this rank is blocked in, were it waiting for `operation`.
  // Of a rank that is blocked in these, without what the executor does not know: other_threads and
  // deadlock_after.
  WaitReport wait_report(const std::vector<const Operation*>& operations) const;
  // Ranks of the group that `operation` still waits for: with an open receive or send, or, before
  // anything moves, in the round of the header check.
  std::vector<int> missing_ranks(const Operation& operation) const;

  // Of the group, in the order of submission, sends and receives last.
  std::vector<std::shared_ptr<Operation>> unfinished(uint32_t group) const;
  std::optional<Failure> group_failure(uint32_t group) const;
  // The first of the group's collectives that has not ended; null: all have.
  std::shared_ptr<Operation> oldest_collective(uint32_t group) const;
  // The number of the group's last collective; 0: none yet.
  uint64_t sequence(uint32_t group) const;
  const FlightRecorder& flight_recorder(uint32_t group) const;
  // Of all groups: their recorders' names and records.
  std::vector<std::pair<std::string, std::vector<FlightRecord>>> flight_records() const;
  Counters counters() const;
  // Processes on this host, this one and those met so far.
  int local_ranks() const;
  Transport& transport();

  // Fails everything (kAborted) and closes the transport. Memory is free afterwards, but for what
  // peers may still write to, which is kept for ever. Only take() may follow, and what reads.
  void close(const std::string& reason);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun::ucx
