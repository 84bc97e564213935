#include "parallel/comm/ucx/engine/execution/offers.h"

#include <algorithm>
#include <optional>
#include <span>

#include "parallel/base/prefetch.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

bool Offers::is_exchanged(const MemberGroup& g, const Step& step) {
  if (step.peer < 0 || !g.members[step.peer].shares) return false;
  return step.offers == OfferRule::kAll ||
         (step.offers == OfferRule::kLarge &&
          std::max(step.from.bytes, step.to.bytes) >= g.config->least_offered);
}

void Offers::prepare(RunningOperation& operation) {
  const MemberGroup& g = *operation.group;
  const std::vector<Step>& steps = operation.schedule->steps;
  if (std::ranges::none_of(steps, [&](const Step& step) { return is_exchanged(g, step); })) return;
  operation.offers.resize(steps.size());
  for (StepId id = 0; id < steps.size(); ++id) {
    if (steps[id].dependencies == 0 && is_exchanged(g, steps[id])) exchange(operation, id);
  }
}

void Offers::exchange(RunningOperation& operation, StepId id) {
  if (operation.offers[id].state != Offer::kUnasked) return;
  operation.is_send(id) ? await(operation, id) : make(operation, id);
}

OfferMessage Offers::describe(const RunningOperation& operation, const Region& region) const {
  OfferMessage message;
  message.sequence = operation.sequence();
  const StridedSpan piece = operation.piece_to_write(region);
  message.describe(piece.layout, region);
  const std::optional<Layout> rows = message.layout();
  // Several ranks would write to each cache line of shorter rows.
  const bool is_line = message.row_bytes == 0 || message.row_bytes >= kCacheLine;
  if (rows && is_line && region.bytes > 0) {
    const std::byte* const begin =
        piece.data + piece.layout.position(region.offset - message.skipped);
    message.offset =
        heap_->offset_of(begin, static_cast<size_t>(rows->extent())).value_or(OfferMessage::kNone);
  }
  return message;
}

void Offers::make(RunningOperation& operation, StepId id) {
  const MemberGroup& g = *operation.group;
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  offer.message = describe(operation, step.to);
  if (offer.message.offset == OfferMessage::kNone && step.staging.bytes > 0) {
    offer.message = describe(operation, step.staging);
    offer.is_staging = true;
  }
  offer.sender = g.members[step.peer].heap;
  offer.request.step = kOfferSend | id;
  offer.state = Offer::kKnown;
  // The receive that it is for has not ended, so nothing comes of this, done or not: the sender
  // misses an offer that is lost.
  static_cast<void>(requests_.send(
      operation, step.peer,
      offer_tag(g.members[step.peer].group, g.config->rank, operation.sequence(), step.message),
      std::as_bytes(std::span(&offer.message, 1)), offer.request));
}

void Offers::await(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  offer.state = Offer::kUnderWay;
  offer.request.step = kOfferReceive | id;
  requests_.receive(
      operation, offer_tag(operation.group->number, step.peer, operation.sequence(), step.message),
      kExactly, std::as_writable_bytes(std::span(&offer.message, 1)), offer.request);
}

bool Offers::received(RunningOperation& operation, const Request& request) {
  const StepId id = request.step & kStepMask;
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  offer.state = Offer::kKnown;
  if (operation.explaining || request.status == MessageStatus::kCancelled) return false;
  const bool is_whole = request.status == MessageStatus::kOk &&
                        request.bytes == static_cast<int64_t>(sizeof(offer.message));
  // Of an operation that this rank has left behind.
  if (is_whole && offer.message.sequence < operation.sequence()) {
    await(operation, id);
    return false;
  }
  const PeerHeap* const heap = operation.group->members[step.peer].heap;
  // On a size mismatch send normally; the receiver reports it.
  if (is_whole && heap != nullptr && offer.message.bytes == step.from.bytes) {
    if (const std::optional<Layout> rows = offer.message.layout()) {
      offer.target = {heap->at(offer.message.offset, static_cast<size_t>(rows->extent())), *rows};
    }
  }
  return true;
}

}  // namespace meshrun::ucx
