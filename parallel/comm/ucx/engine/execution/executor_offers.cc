// Memory that a receiver lends to a sender on its host (shared_heap.h): who asks whom, and what the
// sender does with the answer.
#include <algorithm>

#include "parallel/base/prefetch.h"
#include "parallel/comm/ucx/engine/execution/executor_impl.h"

namespace meshrun::ucx {

bool Executor::Impl::has_offer(const MemberGroup& g, const Step& step) const {
  if (step.peer < 0 || !g.members[step.peer].shares) return false;
  return step.offers == Offers::kAll ||
         (step.offers == Offers::kLarge &&
          std::max(step.from.bytes, step.to.bytes) >= g.config->least_offered);
}

// Offers travel beside the headers, so that nobody waits for them. Those of memory that an earlier
// step uses come later.
void Executor::Impl::prepare(RunningOperation& operation) {
  if (operation.schedule == nullptr) return;
  const MemberGroup& g = *operation.group;
  const std::vector<Step>& steps = operation.schedule->steps;
  operation.steps.resize(steps.size());
  operation.scratch = take_scratch(operation.schedule->scratch_bytes);
  if (std::ranges::none_of(steps, [&](const Step& step) { return has_offer(g, step); })) return;
  operation.offers.resize(steps.size());
  for (StepId id = 0; id < steps.size(); ++id) {
    if (steps[id].dependencies == 0 && has_offer(g, steps[id])) exchange_offer(operation, id);
  }
}

void Executor::Impl::exchange_offer(RunningOperation& operation, StepId id) {
  if (operation.offers[id].state != Offer::kUnasked) return;
  operation.is_send(id) ? await_offer(operation, id) : make_offer(operation, id);
}

OfferMessage Executor::Impl::describe_memory(const RunningOperation& operation,
                                             const Region& region) const {
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

void Executor::Impl::make_offer(RunningOperation& operation, StepId id) {
  const MemberGroup& g = *operation.group;
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  offer.message = describe_memory(operation, step.to);
  if (offer.message.offset == OfferMessage::kNone && step.staging.bytes > 0) {
    offer.message = describe_memory(operation, step.staging);
    offer.is_staging = true;
  }
  offer.sender = g.members[step.peer].heap;
  offer.request.step = kOfferSend | id;
  offer.state = Offer::kKnown;
  post_send(operation, step.peer,
            collective_tag(TagKind::kHeader, g.members[step.peer].group, g.config->rank,
                           operation.sequence(), kFirstOffer + step.message),
            std::as_bytes(std::span(&offer.message, 1)), offer.request);
}

void Executor::Impl::await_offer(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  offer.state = Offer::kUnderWay;
  offer.request.step = kOfferReceive | id;
  post_receive(operation,
               collective_tag(TagKind::kHeader, operation.group->number, step.peer,
                              operation.sequence(), kFirstOffer + step.message),
               kExactly, std::as_writable_bytes(std::span(&offer.message, 1)), offer.request);
}

void Executor::Impl::offer_received(RunningOperation& operation, const Request& request) {
  const StepId id = request.step & kStepMask;
  const Step& step = operation.step(id);
  Offer& offer = operation.offers[id];
  offer.state = Offer::kKnown;
  if (operation.explaining || request.status == MessageStatus::kCancelled) {
    return finish_if_done(operation);
  }
  const bool is_whole = request.status == MessageStatus::kOk &&
                        request.bytes == static_cast<int64_t>(sizeof(offer.message));
  // Of an operation that this rank has left behind.
  if (is_whole && offer.message.sequence < operation.sequence()) return await_offer(operation, id);
  const PeerHeap* const heap = operation.group->members[step.peer].heap;
  // Who expects other bytes than these is sent them, and says so.
  if (is_whole && heap != nullptr && offer.message.bytes == step.from.bytes) {
    if (const std::optional<Layout> rows = offer.message.layout()) {
      offer.target = {heap->at(offer.message.offset, static_cast<size_t>(rows->extent())), *rows};
    }
  }
  if (operation.steps[id].phase == StepState::kPosted) send_step(operation, id);
}

void Executor::Impl::send_step(RunningOperation& operation, StepId id) {
  const Step& step = operation.step(id);
  const bool is_push = operation.is_push(id), is_filled = operation.is_filled(step.from);
  if (!is_push && !is_filled && step.staging.bytes == 0) {
    return send_data(operation, id, operation.bytes_to_read(step.from));
  }
  ReadyStep ready{&operation, id};
  if (is_push) {
    ready.to = operation.offers[id].target;
    ready.to_offset = operation.offers[id].message.skipped;
    counters_.sent_bytes += step.from.bytes;
  } else if (step.staging.bytes > 0) {
    ready.to = operation.piece_to_write(step.staging);
    ready.to_offset = step.staging.offset;
  } else {
    // Not of the scratch memory, which is kept: this may be as long as the tensor.
    operation.filled.emplace_back(new std::byte[static_cast<size_t>(step.from.bytes)]);
    ready.to = contiguous(operation.filled.back().get(), step.from.bytes);
  }
  compute_later(ready);
}

}  // namespace meshrun::ucx
