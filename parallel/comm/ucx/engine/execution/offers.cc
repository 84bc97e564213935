#include "parallel/comm/ucx/engine/execution/offers.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "parallel/base/prefetch.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {
namespace {

constexpr auto kMessageBytes = static_cast<int64_t>(sizeof(OfferMessage));

// The memory of `heap` that a message speaks of; null: none that can be reached.
StridedSpan find(const OfferMessage& message, const PeerHeap* heap) {
  const std::optional<Layout> rows = message.layout();
  if (!rows || heap == nullptr) return {};
  return {heap->at(message.offset, static_cast<size_t>(rows->extent())), *rows};
}

}  // namespace

bool Offers::is_exchanged(const MemberGroup& g, const Step& step) {
  if (step.peer < 0 || !g.members[step.peer].shares) return false;
  return step.offers == OfferRule::kAll ||
         (step.offers == OfferRule::kLarge &&
          std::max(step.from.bytes, step.to.bytes) >= g.config->least_offered);
}

bool Offers::may_be_read(const MemberGroup& g, const Step& step) {
  return step.peer >= 0 && step.offers == OfferRule::kFetched && g.members[step.peer].shares &&
         g.config->check_headers &&
         std::max(step.from.bytes, step.to.bytes) >=
             std::max(g.config->least_lent, kMessageBytes + 1);
}

void Offers::prepare(RunningOperation& operation) {
  const MemberGroup& g = *operation.group;
  const std::vector<Step>& steps = operation.schedule->steps;
  const auto may_lend = [&](const Step& step) {
    return is_exchanged(g, step) || may_be_read(g, step);
  };
  if (std::ranges::none_of(steps, may_lend)) return;
  operation.offers.resize(steps.size());
  for (StepId id = 0; id < steps.size(); ++id) {
    if (steps[id].dependencies == 0 && is_exchanged(g, steps[id])) exchange(operation, id);
  }
}

void Offers::exchange(RunningOperation& operation, StepId id) {
  Offer& offer = operation.offers[id];
  if (offer.state != Offer::kUnasked) return;
  operation.is_send(id) ? await(operation, id) : make(operation, id);
}

OfferMessage Offers::describe(const RunningOperation& operation, const ConstStridedSpan& piece,
                              const Region& region) const {
  OfferMessage message;
  message.sequence = operation.sequence();
  message.describe(piece.layout, region);
  if (const std::optional<Layout> rows = message.layout(); rows && region.bytes > 0) {
    const std::byte* const begin =
        piece.data + piece.layout.position(region.offset - message.skipped);
    message.offset =
        heap_->offset_of(begin, static_cast<size_t>(rows->extent())).value_or(OfferMessage::kNone);
  }
  // Several ranks would write to each cache line of shorter rows, and reading such rows one by one
  // is not faster than packing them.
  if (message.row_bytes > 0 && message.row_bytes < kCacheLine) message.offset = OfferMessage::kNone;
  return message;
}

void Offers::make(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  offer.message = describe(operation, operation.piece_to_write(step.to), step.to);
  if (offer.message.offset == OfferMessage::kNone && step.staging.bytes > 0) {
    offer.message = describe(operation, operation.piece_to_write(step.staging), step.staging);
    offer.is_staging = true;
  }
  offer.borrower = operation.group->members[step.peer].heap;
  offer.state = Offer::kKnown;
  // The receive that it is for has not ended, so nothing comes of this, done or not: the sender
  // misses an offer that is lost.
  static_cast<void>(say(operation, id));
}

bool Offers::say(RunningOperation& operation, StepId id, Tag tag,
                 std::span<const std::byte> words) {
  Offer& offer = operation.offers[id];
  offer.request.step = kOfferSend | id;
  offer.is_sending = !requests_.send(operation, operation.step(id).peer, tag, words, offer.request);
  return offer.is_sending || offer.request.status != MessageStatus::kFailed;
}

bool Offers::say(RunningOperation& operation, StepId id) {
  const MemberGroup& g = *operation.group;
  const Step& step = operation.step(id);
  return say(
      operation, id,
      offer_tag(g.members[step.peer].group, g.config->rank, operation.sequence(), step.message),
      std::as_bytes(std::span(&operation.offers[id].message, 1)));
}

void Offers::await(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  Request& request = operation.awaited(id);
  offer.state = Offer::kUnderWay;
  request.step = kOfferReceive | id;
  requests_.receive(
      operation, offer_tag(operation.group->number, step.peer, operation.sequence(), step.message),
      kExactly, std::as_writable_bytes(std::span(&offer.message, 1)), request);
}

bool Offers::received(RunningOperation& operation, const Request& request) {
  const StepId id = request.step & kStepMask;
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  if (operation.explaining || request.status == MessageStatus::kCancelled) return false;
  const bool is_whole = request.status == MessageStatus::kOk && request.bytes == kMessageBytes;
  // The word is of an operation that this rank has left behind.
  if (is_whole && offer.message.sequence < operation.sequence()) {
    await(operation, id);
    return false;
  }
  if (!offer.is_source) {
    // On a size mismatch send normally; the receiver reports it.
    if (is_whole && offer.message.bytes == step.from.bytes) {
      offer.there = find(offer.message, operation.group->members[step.peer].heap);
    }
    return true;
  }
  // Read, or to be sent after all: nothing is lent any more.
  offer.is_source = offer.is_returned = operation.was_read(id, request);
  if (offer.is_source) {
    counters_.sent_bytes += step.from.bytes - kMessageBytes;  // that message is counted
    counters_.lent_bytes += step.from.bytes;
  }
  return true;
}

bool Offers::lend_source(RunningOperation& operation, StepId id, Tag tag) {
  const MemberGroup& g = *operation.group;
  const Step& step = operation.step(id);
  if (!may_be_read(g, step) || operation.is_filled(step.from)) return false;
  Offer& offer = operation.offers[id];
  // The receiver has answered that it cannot reach it.
  if (offer.state == Offer::kKnown) return false;
  const OfferMessage where = describe(operation, operation.piece_to_read(step.from), step.from);
  if (where.offset == OfferMessage::kNone) return false;
  std::byte* const words = operation.filled.emplace_back(new std::byte[sizeof(where)]).get();
  std::memcpy(words, &where, sizeof(where));
  // Where this fails, the bytes fail too, which is reported.
  if (!say(operation, id, tag, {words, sizeof(where)})) return false;
  offer.is_source = true;
  offer.borrower = g.members[step.peer].heap;
  await(operation, id);
  return true;
}

bool Offers::is_source(const RunningOperation& operation, const Request& request) {
  return !operation.is_point_to_point && request.status == MessageStatus::kOk &&
         request.bytes == kMessageBytes &&
         may_be_read(*operation.group, operation.step(request.step));
}

Offers::Source Offers::find_source(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  OfferMessage& message = operation.offers[id].message;
  std::memcpy(&message, operation.bytes_to_write(operation.receives_in(id)).data(),
              sizeof(message));
  const OfferMessage where = message;
  message.offset = OfferMessage::kNone;  // nothing of this rank's is lent
  if (where.sequence < operation.sequence()) return Source::kStale;
  if (where.sequence == operation.sequence() && where.bytes == step.to.bytes) {
    operation.offers[id].there = find(where, operation.group->members[step.peer].heap);
  }
  return operation.is_read(id) ? Source::kHere : Source::kOutOfReach;
}

bool Offers::answer(RunningOperation& operation, StepId id, bool was_read) {
  OfferMessage& message = operation.offers[id].message;
  message.sequence = operation.sequence();
  message.bytes = was_read ? operation.step(id).to.bytes : 0;
  return say(operation, id);
}

}  // namespace meshrun::ucx
