// For tests of one object of the executor: a transport that goes nowhere and remembers what was
// posted, and a group of this process without a network.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/comm/ucx/engine/execution/member_group.h"
#include "parallel/comm/ucx/engine/transport/transport.h"

namespace meshrun::ucx {

class RecordedTransport final : public Transport {
 public:
  struct Sent {
    PeerId to;
    Tag tag;
    std::vector<std::byte> bytes;
    Request* request;
  };
  struct Posted {
    PeerId from;
    Tag tag, mask;
    std::span<std::byte> into;
    Request* request;
  };

  const std::string& address() const override { return address_; }
  PeerId connect(std::string_view address) override {
    for (size_t i = 0; i < connected.size(); ++i) {
      if (connected[i] == address) return static_cast<PeerId>(i);
    }
    connected.emplace_back(address);
    return static_cast<PeerId>(connected.size() - 1);
  }
  bool send(PeerId to, Tag tag, std::span<const std::byte> bytes, Request& request) override {
    sent.push_back({to, tag, {bytes.begin(), bytes.end()}, &request});
    request.status = status;
    return is_done_at_once;
  }
  void receive(PeerId from, Tag tag, Tag mask, std::span<std::byte> bytes,
               Request& request) override {
    posted.push_back({from, tag, mask, bytes, &request});
  }
  void cancel(Request& receive) override { cancelled.push_back(&receive); }
  bool progress(Completions&) override { return false; }
  bool arm() override { return true; }
  int event_fd() const override { return -1; }
  void wake() override {}
  void close() override {}

  // `bytes` arrive in the last receive that was posted. Returns its request, which is done.
  Request& arrive(std::span<const std::byte> bytes, Tag tag) {
    const Posted last = posted.back();
    if (bytes.size() > last.into.size()) throw std::length_error("the receive is too short");
    std::copy(bytes.begin(), bytes.end(), last.into.begin());
    last.request->status = MessageStatus::kOk;
    last.request->bytes = static_cast<int64_t>(bytes.size());
    last.request->tag = tag;
    return *last.request;
  }

  std::vector<std::string> connected;
  std::vector<Sent> sent;
  std::vector<Posted> posted;
  std::vector<Request*> cancelled;
  bool is_done_at_once = true;
  MessageStatus status = MessageStatus::kOk;

 private:
  const std::string address_ = "self";
};

// Group of three ranks, all known; this process is rank 0.
inline std::unique_ptr<MemberGroup> group_of_three(bool check_headers = true) {
  GroupConfig config;
  config.name = "world";
  config.size = 3;
  config.world_ranks = {10, 11, 12};
  config.check_headers = check_headers;
  auto group = std::make_unique<MemberGroup>(config, 7);
  for (int rank = 1; rank < 3; ++rank) {
    group->members[rank].state = Member::kKnown;
    group->members[rank].peer = rank;
    group->members[rank].group = 20 + static_cast<uint32_t>(rank);
  }
  group->known = 3;
  return group;
}

// As submitted and started: in `state`.
inline OperationPtr add_receive(MemberGroup& group, int peer,
                                OperationState state = OperationState::kMoving) {
  PointToPointSpec spec;
  spec.peer = peer;
  const uint64_t number = ++group.last_point_to_point;
  auto operation = std::make_shared<RunningOperation>(group.config, std::move(spec), number);
  operation->group = &group;
  operation->group_number = group.number;
  operation->state = state;
  group.point_to_point[number] = operation;
  return operation;
}
inline OperationPtr add_collective(MemberGroup& group, OperationSpec spec = {},
                                   OperationState state = OperationState::kQueued) {
  auto operation =
      std::make_shared<RunningOperation>(group.config, std::move(spec), ++group.last_sequence);
  operation->group = &group;
  operation->group_number = group.number;
  operation->state = state;
  (state == OperationState::kQueued ? group.queued.push_back(operation)
                                    : group.collectives.push_back(operation));
  return operation;
}

}  // namespace meshrun::ucx
