// The engine of a process: its one UCX worker, its groups, and who moves operations forward.
//
// Thread model. One mutex guards the Executor. At any time at most one thread has the ROLE of
// progressing it:
//   a caller in wait() takes it from the progress thread and polls, yields, sleeps (wait_policy.h);
//   with several callers waiting, one has it and the others sleep until they are done or it is
//   theirs;
//   the progress thread has it while operations with Drive::kThread are under way and nobody waits;
//   with none it sleeps without a timeout.
// Who has the role, and only who, arms the transport and sleeps on its event descriptor; who
// submits while the owner sleeps, wakes it. (A progress thread left armed beside a polling caller
// costs a wake-up and a fight for the mutex per message: 17 instead of 10 us for 64 KiB, 400 on
// average.) The mutex is given up between two rounds, and a round moves at most 512 KiB, so
// submitting never waits for a long transfer. Callbacks and destructors of the caller's memory run
// without the lock.
//
// submit never waits, not even for a peer to exist. wait() has the operation's deadline.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "parallel/comm/ucx/engine/executor.h"

namespace meshrun::ucx {

class Engine;

// A group in this process. Thread-safe. Destroying it ends its operations (kAborted).
class Group {
 public:
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const GroupConfig& config() const { return config_; }
  Place place() const { return {config_.rank, config_.size, config_.one_host}; }

  // On a failed group: an operation that has failed already.
  std::shared_ptr<Operation> submit(OperationSpec spec);
  std::shared_ptr<Operation> submit(PointToPointSpec spec);

  // Until it is done. Whoever calls it may move any operation forward meanwhile.
  void wait(const Operation& operation);
  // One round without sleeping, for callers that poll is_done().
  void poll();
  // Runs `callback` once when it is done, perhaps now, without the lock, on any thread. From now on
  // the progress thread drives the operation.
  void on_done(const std::shared_ptr<Operation>& operation, std::function<void()> callback);

  // Ends all operations here, now and later, with this failure; members hear of it through the
  // watch.
  void abort(const std::string& reason);
  std::optional<Failure> failure() const;
  uint64_t sequence() const;
  std::string flight_record() const;

  const std::shared_ptr<Engine>& engine() const { return engine_; }

 private:
  friend class Engine;
  Group(std::shared_ptr<Engine> engine, uint32_t id, const GroupConfig& config,
        std::unique_ptr<AddressBook> book);

  const std::shared_ptr<Engine> engine_;
  const uint32_t id_;
  const GroupConfig config_;
  const std::unique_ptr<AddressBook> book_;
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  struct Options {
    const Clock& clock = Clock::Real();
    // Absent: nobody tells of deaths; connections and timeouts alone do.
    std::unique_ptr<PeerWatch> watch;
    // Where a flight record goes when something fails; absent: the log.
    std::function<void(const std::string& json)> dump;
  };

  static std::shared_ptr<Engine> start(std::unique_ptr<Transport> transport, Options options);
  // After the last group: leaves the watch, closes the transport, joins the thread.
  ~Engine();

  // Publishes this rank's record; does not wait for the others'. Errors: publish's text.
  std::optional<std::string> join(const GroupConfig& config, std::unique_ptr<AddressBook> book,
                                  std::shared_ptr<Group>* group);

  Counters counters() const;

 private:
  friend class Group;
  Engine(std::unique_ptr<Transport> transport, Options options);
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace meshrun::ucx
