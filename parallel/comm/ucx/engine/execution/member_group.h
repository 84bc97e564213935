// A group that this process is a member of: its members, and its operations that have not ended.
// Plain state; the rules of order are here, everything else is the executor's.
//
//   collectives   queued -> started -> ended; they start in the order of their numbers, at most
//                 kMaxActive at once and none beside one that is kSequences older (tag.h)
//   point to point  started at once
//
// Threads: under the engine's lock. No errors.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/comm/ucx/engine/execution/flight_recorder.h"
#include "parallel/comm/ucx/engine/execution/group_config.h"
#include "parallel/comm/ucx/engine/execution/running_operation.h"
#include "parallel/comm/ucx/engine/transport/transport.h"
#include "parallel/comm/ucx/engine/values/failure.h"

namespace meshrun::ucx {

using OperationPtr = std::shared_ptr<RunningOperation>;

struct Member {
  enum State : uint8_t { kUnknown, kLookingUp, kKnown };
  State state = kUnknown;
  int world_rank = 0;
  PeerId peer = -1;
  uint32_t group = 0;               // its number for the group
  uint64_t last_called = 0;         // the highest collective that a header of it has told of
  bool shares = false;              // it may offer memory, and is offered some
  PeerHeap* heap = nullptr;         // where that can be reached
  bool touches_no_more = false;     // its group has failed
  std::optional<SteadyNanos> left;  // when it said that it takes no part any more
  uint64_t asks_about = 0;  // its question, to be answered when its address is known; 0: none
};

struct MemberGroup {
  static constexpr int kMaxActive = 16;
  static constexpr int kMaxQueued = 4096;
  // A program may post all its receives before the sends that they wait for: so many more.
  static constexpr int kMaxPointToPoint = 65536;

  // `number` is this process's for the group.
  MemberGroup(const GroupConfig& config, uint32_t number);

  // In the order of submission, sends and receives last.
  std::vector<OperationPtr> unfinished() const;
  // For collectives, or for sends and receives. Never where the group has failed: submission says
  // so.
  bool is_full(bool is_point_to_point) const {
    if (failure) return false;
    return is_point_to_point ? point_to_point.size() >= kMaxPointToPoint
                             : queued.size() >= kMaxQueued;
  }
  // Moves the next collective that may start from `queued` to `collectives`; null: none may.
  OperationPtr start_next();
  // Forgets an operation that has ended.
  void remove(const OperationPtr& operation);

  const std::shared_ptr<const GroupConfig> config;
  const uint32_t number;
  FlightRecorder recorder;
  std::vector<Member> members;
  int known = 0;  // members whose address is
  uint64_t last_sequence = 0;
  uint64_t last_point_to_point = 0;
  std::deque<OperationPtr> queued;        // collectives that have not started
  std::vector<OperationPtr> collectives;  // started, not ended
  std::map<uint64_t, OperationPtr> point_to_point;
  bool is_starting = false;
  std::optional<Failure> failure;
};

// By number.
using Groups = std::map<uint32_t, std::unique_ptr<MemberGroup>>;

}  // namespace meshrun::ucx
