// News of the other ranks from outside the transport: who died, who left, and, where ranks wait for
// each other in vain, what is wrong. Shared memory says none of it.
//
// hub_watch.h is one that needs no daemon: a socket from each rank to rank 0.
#pragma once

#include <functional>
#include <string>
#include <variant>

#include "core/wait_board.h"

namespace meshrun::ucx {

struct PeerLost {
  int world_rank = 0;
  std::string reason;  // "killed by SIGKILL", "its host node-3 was lost", "its connection broke"
};
// Exited by its own will, after shutdown.
struct PeerLeft {
  int world_rank = 0;
};
// No failure in itself: ranks that are asked to stop finish their step, agree on it and write their
// checkpoint through collectives. Named in the sentence of a failure that follows.
struct Stopping {
  std::string reason;
};
// The world is over: its ranks that live go on in another one. What waits in it fails, even if no
// PeerLost says why.
struct Superseded {
  std::string reason;
};
// Somebody asks what this rank has been doing: `tell` gets Engine::flight_records(most_operations)
// before the listener returns.
struct RecordWanted {
  int most_operations = 0;
  std::function<void(const std::string& json)> tell;
};
using PeerNews = std::variant<PeerLost, PeerLeft, Stopping, Superseded, WaitVerdict, RecordWanted>;

class PeerWatch {
 public:
  using Listener = std::function<void(const PeerNews&)>;

  virtual ~PeerWatch() = default;

  // Once. `listener` is called from a thread of the watch, never before this returns, and no more
  // after stop().
  virtual void start(Listener listener) = 0;
  // A thread of this rank has been blocked in an operation for WaitBoard::kReportAfter; again when
  // the report changes. Never waits, not even for a lock that is held while `listener` runs: the
  // engine calls it under its own lock.
  virtual void report(const WaitReport& report) = 0;
  // Whether this rank has operations under way since `at`, and how many bytes in all it has sent.
  // As report(); often.
  virtual void under_way(bool /*any*/, SteadyNanos /*at*/, int64_t /*sent_bytes*/) {}
  // The last report does not hold any more. As report().
  virtual void withdraw(int world_rank) = 0;
  // Each rank's end comes to be known, with how it ended: as PeerLost or PeerLeft, soon after it.
  virtual bool sees_ends() const { return false; }
  // Tells the others that this rank leaves by its own will. Waits at most a second.
  virtual void stop() = 0;
};

}  // namespace meshrun::ucx
