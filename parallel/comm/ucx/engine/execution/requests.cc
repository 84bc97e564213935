#include "parallel/comm/ucx/engine/execution/requests.h"

namespace meshrun::ucx {

bool Requests::send(RunningOperation& operation, int rank, Tag tag,
                    std::span<const std::byte> bytes, Request& request) {
  request.owner = &operation;
  ++counters_.messages;
  counters_.sent_bytes += static_cast<int64_t>(bytes.size());
  if (transport_.send(connections_.peer(*operation.group, rank), tag, bytes, request)) return true;
  ++operation.outstanding;
  return false;
}

void Requests::receive(RunningOperation& operation, Tag tag, Tag mask, std::span<std::byte> bytes,
                       Request& request) {
  request.owner = &operation;
  ++operation.outstanding;
  transport_.receive(kAnyPeer, tag, mask, bytes, request);
}

void Requests::receive_data(RunningOperation& operation, int rank, Tag tag,
                            std::span<std::byte> bytes, Request& request) {
  request.owner = &operation;
  ++operation.outstanding;
  transport_.receive(connections_.peer(*operation.group, rank), tag, kExactly, bytes, request);
}

void Requests::cancel_receives(RunningOperation& operation) {
  if (operation.outstanding == 0) return;
  if (!is_in_round_) return cancel_open_receives(operation);
  to_cancel_.push_back(operation.shared_from_this());
}

void Requests::cancel_offers(RunningOperation& operation) {
  if (!operation.offers.empty()) to_cancel_.push_back(operation.shared_from_this());
}

void Requests::end_round() {
  is_in_round_ = false;
  for (const OperationPtr& operation : to_cancel_) {
    operation->is_ended() ? cancel_open_receives(*operation) : cancel_open_offers(*operation);
  }
  to_cancel_.clear();
}

void Requests::cancel_open_receives(RunningOperation& operation) {
  if (operation.check && operation.round < operation.check->rounds() &&
      operation.header().is_receiving) {
    transport_.cancel(operation.header().receive);
  }
  for (StepId id = 0; id < operation.steps.size(); ++id) {
    StepState& step = operation.steps[id];
    if (step.phase == StepState::kPosted && !operation.is_send(id)) {
      transport_.cancel(step.request);
    }
  }
  cancel_open_offers(operation);
}

void Requests::cancel_open_offers(RunningOperation& operation) {
  for (StepId id = 0; id < operation.offers.size(); ++id) {
    if (operation.offers[id].state != Offer::kUnderWay) continue;
    transport_.cancel(operation.awaited(id));
  }
}

}  // namespace meshrun::ucx
