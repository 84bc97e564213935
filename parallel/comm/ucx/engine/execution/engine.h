// The engine of a process: its one UCX worker, its groups, and the thread that moves operations
// forward.
//
// Thread model. One mutex guards the Executor. At any time at most one thread owns progress:
//   a caller in wait() polls, yields, sleeps (wait_policy.h), and takes progress over from the
//   progress thread, at once where that sleeps; with several callers waiting, one owns it and the
//   others sleep until they are done or it is theirs;
//   the progress thread owns it while operations with Drive::kThread are under way and nobody
//   waits, and for a while after a failure, which others are to be told of; else it sleeps: for
//   1 ms after its last work in naps of 100 us, or of 500 us where callers drove the last
//   operation, then without a timeout.
// Submitting and handing on do not wake it from a nap. Waking costs the submitting thread a system
// call and both threads a fight for the mutex: 27 to 66 us instead of 9 to 11 for an operation that
// is waited for at once. on_done(), hand_over(), failures and news do wake it.
// Only the owner polls the transport and sleeps on its event descriptor. A submitting thread wakes
// the owner there, unless the transport can be armed again: then there is nothing for the owner to
// do. (A progress thread left armed beside a polling caller costs a wake-up and a fight for the
// mutex per message: 17 instead of 10 us for 64 KiB, 400 on average.) The owner gives up the mutex
// between two rounds if another thread wants it, and a round moves at most 512 KiB. So submitting
// never waits for a long transfer.
//
// Callbacks and destructors of the caller's memory run without the lock and without owning
// progress, on a thread that waits, submits or polls, or on the progress thread: never on a thread
// of the address book or of the watch. They may call anything here, wait() too.
//
// A thread that has been in wait(), without a timeout of its own, for WaitBoard::kReportAfter is
// reported to the watch, with what it is blocked in and with the number of other threads of this
// rank that have begun operations: one of those might begin the one that is missing.
//
// submit() waits for room where the group is full (executor.h), and else never, not even for a peer
// to exist. A caller that waits for room moves operations forward, as in wait(). Where there is no
// room before the operation's timeout is up, the operation fails. A callback, or a destructor of
// the caller's memory, that submits does not wait: a full group takes the operation all the same.
// wait() has the operation's deadline.
//
// An exception in here, memory that runs out, is thrown to nobody: all operations of the process
// end (kTransport), later ones too, and the lock is free. submit() itself may throw std::bad_alloc
// before anything has begun.
//
// After fork() nothing of its parent's engine is touched in a child, not even its mutex, which
// another thread of the parent may have held: operations that the child submits have failed, those
// that its parent had under way never end there (cannot_end()), callbacks are not called, a group
// cannot be joined.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/os/cores.h"
#include "parallel/comm/ucx/engine/execution/executor.h"
#include "parallel/comm/ucx/engine/planning/algorithms.h"

namespace meshrun {
struct NodeFacts;
}

namespace meshrun::ucx {

class Engine;

using Numbered = std::function<void()>;

// A group in this process. Thread-safe. Destroying it ends its operations (kAborted).
class Group {
 public:
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupConfig& config() const { return config_; }
  Place place() const {
    return {.rank = config_.rank,
            .size = config_.size,
            .one_host = config_.hosts.is_one(),
            .hosts = &config_.hosts,
            .in_rank_order = config_.in_rank_order,
            .headers_carry = config_.check_headers};
  }

  // On a failed group: an operation that has failed already. A caller that submits with
  // Drive::kCaller waits for it next, or calls hand_over().
  // `spec`: an OperationSpec or a PointToPointSpec. `numbered`: called once the operation has its
  // place among the group's, before any callback; not where no operation could be made.
  template <typename Spec>
  std::shared_ptr<Operation> submit(Spec&& spec, const Numbered& numbered = nullptr);

  // Until it is done. The calling thread may move any operation forward meanwhile. With a timeout:
  // false when that passes first; the operation goes on, driven by the progress thread. False, too,
  // where it cannot end.
  bool wait(Operation& operation, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  // Why the operation, which is not done, will never be; absent: it will.
  std::optional<Failure> cannot_end(const Operation& operation) const;
  // One round without sleeping, for callers that poll is_done().
  void poll();
  // From now on the progress thread drives the operation: for a caller that does not wait for it
  // after all.
  void hand_over(Operation& operation);
  // Runs `callback` once when it is done or cannot end, perhaps now; in a child of fork() never. It
  // must not throw. Hands over, too.
  void on_done(const std::shared_ptr<Operation>& operation, std::function<void()> callback);

  // How many callbacks run because operations are done, on other threads too: this rank is not
  // stuck meanwhile, since they may call. Whoever runs a callback adds one before it and takes one
  // away after it; the counter may outlive the group.
  std::shared_ptr<std::atomic<int>> running_callbacks() const;

  // Ends all operations here and on the other members, now and later. `reason` is a full sentence,
  // the failure's.
  void abort(const std::string& reason, FailureKind kind = FailureKind::kAborted);
  // Takes no part any more: later operations fail here (kAborted, `reason`), and on other members
  // those that need this rank (kPeerLeft). Nothing where the group has failed.
  void leave(const std::string& reason);
  // Operations of this process, in the order of submission, sends and receives last.
  std::vector<std::shared_ptr<Operation>> unfinished() const;
  std::optional<Failure> failure() const;
  uint64_t sequence() const;
  // The collective that this process has submitted last; without a lock. 0: none.
  uint64_t last_submitted() const { return last_submitted_; }
  std::string flight_record() const;

  // Whether this process is a child of the one that joined.
  bool is_forked() const;

  const std::shared_ptr<Engine>& engine() const { return engine_; }

 private:
  friend class Engine;
  Group(std::shared_ptr<Engine> engine, uint32_t id, const GroupConfig& config,
        std::unique_ptr<AddressBook> book);
  // In a child of the rank's process.
  Failure forked(const std::string& what) const;
  // After the engine has broken down.
  Failure broken(const std::string& what) const;

  const std::shared_ptr<Engine> engine_;
  const uint32_t id_;
  const GroupConfig config_;
  std::unique_ptr<AddressBook> book_;
  std::atomic<uint64_t> last_submitted_{0};
};

// Number of this host, IPC namespace, set of cores and CPU quota, as in AddressRecord: ranks with
// the same number share cores.
uint64_t this_host();
// Number of this set of cores on the host that `facts` tell of, under this quota.
uint64_t host_of(const NodeFacts& facts, const os::CpuQuota& quota = {});

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  struct Options {
    const Clock& clock = Clock::Real();
    // Absent: nobody tells of deaths; connections and timeouts alone do.
    std::unique_ptr<PeerWatch> watch = nullptr;
    // What the watch is told: WaitReport::deadlock_after.
    SteadyNanos deadlock_after = WaitReport::kDeadlockAfter;
    // Where a flight record goes when something fails; absent: the log.
    std::function<void(const std::string& json)> dump = nullptr;
    uint64_t host = this_host();
    double cores = os::UsableCores(os::FindCpuQuota());
    // Where peers on this host may write and read; outlives the engine. Null: nowhere.
    SharedHeap* heap = nullptr;
  };

  static std::shared_ptr<Engine> start(std::unique_ptr<Transport> transport, Options options);
  // After the last group, on any thread: leaves the watch, joins the thread, closes the transport.
  ~Engine();

  // Publishes this rank's record; does not wait for the others'. Errors: publish's text; a group of
  // more than kMaxRanks, on all ranks; this process has made kMaxGroups - 1 groups: the other
  // members' operations fail with the same sentence.
  std::optional<std::string> join(const GroupConfig& config, std::unique_ptr<AddressBook> book,
                                  std::shared_ptr<Group>* group);

  Counters counters() const;
  // {"now_ms": ..., "groups": [what Group::flight_record() gives, ...]}; `most`: operations of each
  // group, 0: as many as there.
  std::string flight_records(int most = 0) const;

 private:
  friend class Group;
  class Impl;
  explicit Engine(std::shared_ptr<Impl> impl);
  // Shared with the progress thread, on which the engine may end.
  std::shared_ptr<Impl> impl_;
};

}  // namespace meshrun::ucx
