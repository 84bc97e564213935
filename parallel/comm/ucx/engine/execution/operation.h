// One operation of a group, from submission to its end.
//
//   kQueued ──▶ kConnecting ──▶ kChecking ──▶ kMoving ──▶ kDone
//      │             │              │            │
//      └─────────────┴──────────────┴────────────┴──────▶ kFailed
//
//   kQueued      behind kMaxActive earlier operations of its group
//   kConnecting  an address of a peer is still being looked up
//   kChecking    rounds of the header check (header_check.h); none when the check is off
//   kMoving      its schedule runs
//
// Done or failed, callbacks run and waiters wake. Memory is another matter: a send that UCX cannot
// cancel may still read from a failed operation's memory, and a peer may write to it or read it, so
// the executor keeps it (`keep_alive`): executor.h says how long.
//
// Collectives of a group are numbered from 1 by all its ranks alike; sends and receives by each
// rank for itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "parallel/base/strided_span.h"
#include "parallel/comm/ucx/engine/execution/flight_recorder.h"
#include "parallel/comm/ucx/engine/planning/schedule.h"
#include "parallel/comm/ucx/engine/protocol/header_check.h"
#include "parallel/comm/ucx/engine/values/failure.h"

namespace meshrun::ucx {

// Inline: most operations are of few pieces.
using InputSpans = absl::InlinedVector<ConstStridedSpan, 4>;
using OutputSpans = absl::InlinedVector<StridedSpan, 4>;

// Which thread moves it forward while it is under way.
enum class Drive : uint8_t {
  // The submitting thread, which waits for it next. The progress thread is left asleep.
  kCaller,
  // The progress thread: the caller computes meanwhile.
  kThread,
};

struct OperationSpec {
  Signature signature;  // `sequence` is filled in by the group
  PieceSizes sizes;     // of all-to-alls, whose ranks know their own sizes alone
  // What was called, in words ("all_gather_v of float32 [3, 4], sizes [3, 2, 3]"); kHasProblem: the
  // problem. Called at most once, on a disagreement, while `keep_alive` is held; absent: made from
  // `record`.
  std::function<std::string()> text;
  FlightRecord record;  // shape and sizes; the rest is filled in
  // Shared with later calls of the same shape (schedule_cache.h). Absent: nothing moves.
  std::shared_ptr<const Schedule> schedule;
  InputSpans inputs;
  OutputSpans outputs;
  // Writes inputs that are produced on demand. Sent pieces only. Called under the engine's lock, on
  // whatever thread moves the operation forward, while `keep_alive` is held.
  Fill fill;
  // From submission. Never infinite: the backend turns c10d's "no timeout" into a day.
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);
  Drive drive = Drive::kThread;
  // Whatever owns the memory above.
  std::shared_ptr<void> keep_alive;
};

struct PointToPointSpec {
  bool is_send = false;
  int peer = -1;  // -1: receive from any
  uint32_t user_tag = 0;
  StridedSpan memory;  // a send only reads it
  FlightRecord record;
  std::chrono::nanoseconds timeout = std::chrono::minutes(30);
  Drive drive = Drive::kThread;
  std::shared_ptr<void> keep_alive;
};

// A handle shared by the submitter and the engine. Thread-safe.
class Operation {
 public:
  virtual ~Operation() = default;

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  // Valid once done; absent: it succeeded.
  const std::optional<Failure>& failure() const { return failure_; }
  // Valid once a receive is done: the rank it came from.
  int source_rank() const { return source_rank_; }
  uint64_t sequence() const { return sequence_; }
  // "all_reduce number 17 of group "world" (float32 [1048576], 4194304 bytes)"
  virtual std::string name() const = 0;

 protected:
  std::atomic<bool> done_{false};
  // Written before done_, by the thread that ends it.
  std::optional<Failure> failure_;
  int source_rank_ = -1;
  uint64_t sequence_ = 0;
};

}  // namespace meshrun::ucx
