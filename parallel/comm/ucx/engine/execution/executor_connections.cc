// Addresses, peers, and the control messages of failures and timeouts.
#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "parallel/comm/ucx/engine/execution/executor_impl.h"

namespace meshrun::ucx {

PeerId Executor::Impl::peer_of(MemberGroup& g, int rank) {
  Member& member = g.members[rank];
  // Few programs send to themselves.
  if (member.peer < 0) member.peer = transport_->connect(transport_->address());
  return member.peer;
}

std::vector<int> Executor::Impl::unknown_peers(const RunningOperation& operation) const {
  const MemberGroup& g = *operation.group;
  const auto is_unknown = [&](int rank) { return g.members[rank].state != Member::kKnown; };
  if (operation.is_point_to_point) {
    const int peer = operation.point_to_point.peer;
    return peer >= 0 && is_unknown(peer) ? std::vector{peer} : std::vector<int>();
  }
  std::vector<int> ranks;
  if (g.known == g.config->size) return ranks;
  for (int rank = 0; rank < g.config->size; ++rank) {
    if (is_unknown(rank)) ranks.push_back(rank);
  }
  std::vector<bool> needed(g.members.size());
  if (g.config->check_headers) {
    const HeaderCheck check(g.config->rank, g.config->size, {});
    for (int round = 0; round < check.rounds(); ++round) {
      needed[check.send_to(round)] = true;
      needed[check.receive_from(round)] = true;
    }
  }
  if (operation.schedule != nullptr) {
    for (const Step& step : operation.schedule->steps) {
      if (step.peer >= 0) needed[step.peer] = true;
    }
  }
  std::erase_if(ranks, [&](int rank) { return !needed[rank]; });
  return ranks;
}

void Executor::Impl::look_up(MemberGroup& g, const std::vector<int>& ranks) {
  Actions::LookUp look_up{g.number, {}};
  for (const int rank : ranks) {
    Member& member = g.members[rank];
    if (member.state != Member::kUnknown) continue;
    member.state = Member::kLookingUp;
    look_up.ranks.push_back(rank);
  }
  if (!look_up.ranks.empty()) actions_.look_ups.push_back(std::move(look_up));
}

void Executor::Impl::found(uint32_t number, int rank, const std::optional<AddressRecord>& record,
                           const std::string& reason) {
  MemberGroup* const g = find(number);
  if (g == nullptr || closed_) return;
  now_ = clock_.SteadyNow();
  Member& member = g->members[rank];
  if (!record) {
    return fail_group(*g, {FailureKind::kTransport,
                           fmt::format("rank {} of group \"{}\" cannot be reached from rank {}: {}",
                                       rank, g->config->name, g->config->rank, reason),
                           {rank}});
  }
  if (record->group == 0 || record->group >= kMaxGroups) {
    return fail_group(
        *g, {FailureKind::kInvalidArgument, too_many_groups(g->config->name, rank), {rank}});
  }
  const AddressRecord own = address_record(number);
  if (member.state != Member::kKnown) ++g->known;
  member.state = Member::kKnown;
  member.peer = transport_->connect(record->transport_address);
  member.group = record->group;
  world_rank_of_[member.peer] = member.world_rank;
  host_of_process_[record->process] = record->host;
  member.shares = may_share(own.heap, record->heap);
  if (member.shares) {
    const auto [entry, is_new] = heap_of_process_.try_emplace(record->process);
    if (is_new) entry->second = PeerHeap::open(record->heap);
    member.heap = entry->second.get();
  }
  if (record->algorithm_version != own.algorithm_version ||
      record->checks_headers != own.checks_headers) {
    fail_group(
        *g,
        {FailureKind::kMismatch,
         fmt::format("ranks of group \"{}\" run different programs: rank {} has collective "
                     "algorithms of version {}, rank {} of version {}; rank {} checks headers: {}, "
                     "rank {}: {}. Set MESHRUN_CHECK_COLLECTIVES alike, and use one build.",
                     g->config->name, g->config->rank, own.algorithm_version, rank,
                     record->algorithm_version, g->config->rank, own.checks_headers, rank,
                     record->checks_headers),
         {g->config->rank, rank}});
  }
  if (g->failure) {
    // Others were told when it failed.
    return send_control(*g, rank, {ControlHead::kFailure, 0, 0}, serialize(*g->failure));
  }
  if (const uint64_t about = std::exchange(member.asks_about, 0)) {
    send_control(*g, rank, {ControlHead::kAnswer, about, g->last_sequence});
  }
  for (const OperationPtr& operation : g->unfinished()) {
    if (!operation->answers.empty()) {
      send_control(*g, rank, {ControlHead::kQuestion, operation->sequence(), 0});
    }
    if (operation->state != OperationState::kConnecting) continue;
    std::erase(operation->unknown, rank);
    if (operation->unknown.empty()) start_connected(*operation);
  }
  run_ready();
}

void Executor::Impl::send_control(const MemberGroup& g, int rank, const ControlHead& head,
                                  std::string_view bytes) {
  const Member& member = g.members[rank];
  ControlMessage& message = control_sends_.emplace_back();
  message.bytes.assign(reinterpret_cast<const char*>(&head), sizeof(head)).append(bytes);
  const Tag tag = prefix(TagKind::kControl, member.group, g.config->rank);
  if (transport_->send(member.peer, tag, std::as_bytes(std::span(message.bytes)),
                       message.request)) {
    control_sends_.pop_back();
  }
}

void Executor::Impl::post_control_receive() {
  transport_->receive(kAnyControl, kAnyControl, control_buffer_, control_receive_);
}

void Executor::Impl::control_done(Request& request) {
  if (&request != &control_receive_) {
    control_sends_.remove_if([&](const ControlMessage& m) { return &m.request == &request; });
    return;
  }
  if (request.status == MessageStatus::kOk) {
    const auto bytes = std::span<const std::byte>(control_buffer_).first(request.bytes);
    control_received(group_of(request.tag), sender_of(request.tag), bytes);
  }
  if (request.status != MessageStatus::kCancelled) post_control_receive();
}

void Executor::Impl::control_received(uint32_t number, int sender,
                                      std::span<const std::byte> bytes) {
  ControlHead head;
  if (bytes.size() < sizeof(head)) return;
  std::memcpy(&head, bytes.data(), sizeof(head));
  // Also of a group that is gone here.
  if (head.type == ControlHead::kFailure) give_back_memory(number, sender);
  MemberGroup* const found = find(number);
  if (found == nullptr || sender >= found->config->size) return;
  MemberGroup& g = *found;
  switch (head.type) {
    case ControlHead::kFailure:
      g.members[sender].writes_no_more = true;
      if (std::optional<Failure> failure = parse_failure(bytes.subspan(sizeof(head)))) {
        fail_group(g, *std::move(failure));
      }
      break;
    case ControlHead::kQuestion:
      if (g.members[sender].state == Member::kKnown) {
        send_control(g, sender, {ControlHead::kAnswer, head.sequence, g.last_sequence});
      } else {
        g.members[sender].asks_about = head.sequence;
        look_up(g, {sender});
      }
      break;
    case ControlHead::kAnswer:
      answered(g, sender, head);
      break;
  }
}

}  // namespace meshrun::ucx
