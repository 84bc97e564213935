#include "parallel/comm/ucx/engine/execution/control_channel.h"

#include <cstring>
#include <span>

#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

ControlChannel::ControlChannel(Transport& transport)
    : transport_(transport), buffer_(sizeof(ControlHead) + kMaxFailureBytes) {
  post_receive();
}

void ControlChannel::post_receive() {
  transport_.receive(kAnyPeer, kAnyControl, kAnyControl, buffer_, receive_);
}

void ControlChannel::send(const MemberGroup& g, int rank, const ControlHead& head,
                          std::string_view bytes) {
  const Member& member = g.members[rank];
  Send& send = sends_.emplace_back();
  send.bytes.assign(reinterpret_cast<const char*>(&head), sizeof(head)).append(bytes);
  const Tag tag = prefix(TagKind::kControl, member.group, g.config->rank);
  if (transport_.send(member.peer, tag, std::as_bytes(std::span(send.bytes)), send.request)) {
    sends_.pop_back();
  }
}

void ControlChannel::send_failure(const MemberGroup& g) {
  const std::string bytes = serialize(*g.failure);
  for (int rank = 0; rank < g.config->size; ++rank) {
    if (rank == g.config->rank || g.members[rank].state != Member::kKnown) continue;
    send(g, rank, {ControlHead::kFailure}, bytes);
  }
}

void ControlChannel::send_failure(const MemberGroup& g, int rank) {
  send(g, rank, {ControlHead::kFailure}, serialize(*g.failure));
}

void ControlChannel::send_left(const MemberGroup& g) {
  for (int rank = 0; rank < g.config->size; ++rank) {
    if (rank == g.config->rank || g.members[rank].state != Member::kKnown) continue;
    send(g, rank, {ControlHead::kLeft});
  }
}

std::optional<ControlMessage> ControlChannel::done(Request& request) {
  if (&request != &receive_) {
    sends_.remove_if([&](const Send& send) { return &send.request == &request; });
    return std::nullopt;
  }
  std::optional<ControlMessage> message;
  const auto bytes = std::span<const std::byte>(buffer_).first(
      request.status == MessageStatus::kOk ? request.bytes : 0);
  if (bytes.size() >= sizeof(ControlHead)) {
    message.emplace();
    message->group = group_of(request.tag);
    message->sender = sender_of(request.tag);
    std::memcpy(&message->head, bytes.data(), sizeof(ControlHead));
    if (message->head.type == ControlHead::kFailure) {
      message->failure = parse_failure(bytes.subspan(sizeof(ControlHead)));
    }
  }
  if (request.status != MessageStatus::kCancelled) post_receive();
  return message;
}

// Or UCX warns of it. Nothing else that is still posted can be cancelled.
void ControlChannel::cancel_receive() { transport_.cancel(receive_); }

}  // namespace meshrun::ucx
