// An operation as the executor sees it: the handle of operation.h and what it takes to move it
// forward. Owned by the executor and its submitter; name() on any thread, all else under the
// engine's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "core/clock.h"
#include "parallel/base/shared_heap.h"
#include "parallel/comm/ucx/engine/execution/group_config.h"
#include "parallel/comm/ucx/engine/execution/operation.h"
#include "parallel/comm/ucx/engine/execution/scratch_pool.h"
#include "parallel/comm/ucx/engine/protocol/header_check.h"
#include "parallel/comm/ucx/engine/protocol/offer_message.h"
#include "parallel/comm/ucx/engine/transport/transport.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

struct MemberGroup;

// One message each way of the header check. Lives as long as the operation: a send may outlast its
// round.
struct HeaderRound {
  Request send, receive;
  bool is_receiving = false, is_sending = false;
  std::unique_ptr<std::byte[]> memory;
  std::span<std::byte> out, in;  // in `memory`
};

// Memory of one end of a step that the other end may reach (offers.h).
struct Offer {
  enum State : uint8_t { kUnasked, kUnderWay, kKnown };
  Request request;           // of what this rank says, or of an offer that it awaits
  OfferMessage message;      // the receiver's word; in a receiver, first a sender's on its source
  State state = kUnasked;    // of the receiver's word; kKnown: it is sent, or received
  bool is_sending = false;   // what this rank says is under way
  bool is_staging = false;   // what is offered is the step's staging
  bool is_source = false;    // the sender lends what it would send
  bool is_returned = false;  // the other end has said that it is done with what is lent to it
  // Memory of the other end, after `skipped` bytes: where a sender writes, or a receiver reads.
  // Null: the bytes are sent.
  StridedSpan there;
  const PeerHeap* borrower = nullptr;  // of the process to which something is lent
};

struct StepState {
  // kBroken: the transport is through with it, but not as it should be; it stays open until the
  // operation fails.
  enum Phase : uint8_t { kWaiting, kReady, kPosted, kBroken, kFinished };
  Request request;
  uint32_t waits_for = 0;
  Phase phase = kWaiting;
};

// What a request of an operation is for, in Request::step: a step of the schedule, or one of these
// plus the round.
inline constexpr uint32_t kHeaderSend = 1u << 31;
inline constexpr uint32_t kHeaderReceive = 1u << 30;
// And one of these plus the step.
inline constexpr uint32_t kOfferSend = 1u << 29;
inline constexpr uint32_t kOfferReceive = 1u << 28;
inline constexpr uint32_t kStepMask = kOfferReceive - 1;

class RunningOperation final : public Operation,
                               public std::enable_shared_from_this<RunningOperation> {
 public:
  RunningOperation(std::shared_ptr<const GroupConfig> config, OperationSpec&& spec,
                   uint64_t sequence);
  RunningOperation(std::shared_ptr<const GroupConfig> config, PointToPointSpec&& spec,
                   uint64_t sequence);

  std::string name() const override;
  // What was called, or the problem, in the caller's words.
  std::string words() const;
  // Ranks of the group that it still waits for: with an open receive or send, or, before anything
  // moves, in the round of the header check.
  std::vector<int> missing_ranks() const;

  bool is_ended() const { return state >= OperationState::kDone; }
  bool is_send(StepId id) const {
    return is_point_to_point ? point_to_point.is_send : step(id).kind == StepKind::kSend;
  }
  // The other rank (-1: any) and the bytes of a message of its schedule, or of the one that it is.
  int peer_of(StepId id) const { return is_point_to_point ? point_to_point.peer : step(id).peer; }
  int64_t bytes_of(StepId id) const;
  // The header of the round under way.
  HeaderRound& header() { return explaining ? explaining_rounds[round] : rounds[round]; }
  // The round that `send` belongs to: the one under way or an earlier one.
  HeaderRound& header_of(const Request& send) {
    const uint32_t message = send.step & kStepMask;
    return message < kExplainRound ? rounds[message] : explaining_rounds[message - kExplainRound];
  }
  bool is_send() const { return is_point_to_point && point_to_point.is_send; }
  bool is_receive() const { return is_point_to_point && !point_to_point.is_send; }
  const Step& step(StepId id) const { return schedule->steps[id]; }
  bool is_filled(const Region& region) const {
    return region.space == Space::kInput && spec.inputs[region.piece].data == nullptr;
  }
  // A send that the sender writes into the receiver's memory, a receive that the receiver reads
  // from the sender's.
  bool is_push(StepId id) const { return is_send(id) && reaches(id); }
  bool is_read(StepId id) const { return !is_send(id) && reaches(id); }
  // A receive whose memory was offered to the sender.
  bool was_offered(StepId id) const {
    return !offers.empty() && !is_send(id) && offers[id].message.offset != OfferMessage::kNone;
  }
  // What the other end may write to or read: until it says that it is through, or that its group
  // has failed. Where the ranks disagree, nobody does.
  bool is_lent(StepId id) const {
    if (explaining || offers.empty() || offers[id].is_returned) return false;
    return offers[id].is_source || (was_offered(id) && steps[id].phase != StepState::kFinished);
  }
  bool has_lent() const;
  // What is lent to `borrower`; false: nothing.
  bool give_back(int borrower);
  // What is lent to processes that have ended; false: nothing.
  bool give_back_of_the_dead();

  // Where a region of it lies; StridedSpan for outputs and scratch only.
  ConstStridedSpan piece_to_read(const Region& region) const;
  StridedSpan piece_to_write(const Region& region) const;
  // Where what is sent to a receive goes: to its staging, if it has some.
  const Region& receives_in(StepId id) const {
    return step(id).staging.bytes > 0 ? step(id).staging : step(id).to;
  }
  // Memory of a region that is contiguous in its piece.
  std::span<const std::byte> bytes_to_read(const Region& region) const;
  std::span<std::byte> bytes_to_write(const Region& region) const;

  // The transport is through with `request`. A step is open until message_done() or, once the
  // operation has ended, until its message has come: then nobody writes there any more.
  void note_done(const Request& request, SteadyNanos now) {
    --outstanding;
    // A request that failed promises nothing that still comes.
    if (request.status == MessageStatus::kOk) moved = now;
    if (request.step & kHeaderReceive) {
      header().is_receiving = false;
    } else if (request.step & kHeaderSend) {
      header_of(request).is_sending = false;
    } else if (request.step & kOfferSend) {
      offers[request.step & kStepMask].is_sending = false;
    } else if (request.step & kOfferReceive) {
      offer_done(request);
    } else {
      const bool has_come =
          request.status == MessageStatus::kOk || request.status == MessageStatus::kTruncated;
      steps[request.step].phase =
          is_ended() && has_come ? StepState::kFinished : StepState::kBroken;
    }
  }

  // The request that awaits the receiver's word. For a lent source that is the step's own request,
  // because the offer's request sends the place of the source.
  Request& awaited(StepId id) {
    return offers[id].is_source ? steps[id].request : offers[id].request;
  }
  // Whether the word that has come is that the receiver has read.
  bool was_read(StepId id, const Request& request) const {
    const OfferMessage& word = offers[id].message;
    return offers[id].is_source && request.status == MessageStatus::kOk &&
           request.bytes == static_cast<int64_t>(sizeof(word)) && word.sequence == sequence() &&
           word.bytes == step(id).from.bytes;
  }
  // Nobody looks at what comes after the end, except that memory is returned.
  void offer_done(const Request& request) {
    const StepId id = request.step & kStepMask;
    offers[id].state = Offer::kKnown;
    if (is_ended() && was_read(id, request)) offers[id].is_returned = true;
  }
  bool reaches(StepId id) const { return !offers.empty() && offers[id].there.data != nullptr; }

  // The handle's end: afterwards only the executor's own fields change.
  void end(std::optional<Failure> failure, int source);

  const std::shared_ptr<const GroupConfig> config;
  const bool is_point_to_point;
  OperationSpec spec;               // a collective
  PointToPointSpec point_to_point;  // else
  FlightRecord record;
  uint64_t ticket = 0;  // in the flight recorder

  MemberGroup* group = nullptr;  // until it has ended
  uint32_t group_number = 0;
  OperationState state = OperationState::kQueued;
  Drive drive;
  SteadyNanos deadline{0};
  std::chrono::nanoseconds timeout;

  // kConnecting: whose addresses are missing.
  std::vector<int> unknown;

  // kChecking.
  std::optional<HeaderCheck> check;
  bool explaining = false;
  int round = 0;
  // Not resized while a message is under way: the transport has pointers into them, as into steps.
  absl::InlinedVector<HeaderRound, 2> rounds;
  std::unique_ptr<HeaderRound[]> explaining_rounds;
  // What it ends with when its last request is done.
  std::optional<Failure> disagreement;

  // kMoving. A point-to-point operation has one state, and no step.
  std::shared_ptr<const Schedule> schedule;
  absl::InlinedVector<StepState, 4> steps;
  std::vector<Offer> offers;  // by step; empty: none are exchanged
  size_t steps_left = 0;
  Scratch scratch;
  // What is sent and lies nowhere else: what `fill` has written, and where a source lies.
  std::vector<std::unique_ptr<std::byte[]>> filled;
  int queued_steps = 0;  // in the executor's queues

  // Requests that the transport holds.
  int outstanding = 0;
  // When one of them was done last, other than by a failure, or the operation was submitted.
  SteadyNanos moved{0};
  // After its deadline: what members answer (collectives they have called), by rank; -1: nothing.
  std::vector<int64_t> answers;
};

}  // namespace meshrun::ucx
