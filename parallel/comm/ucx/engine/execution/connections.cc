#include "parallel/comm/ucx/engine/execution/connections.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "parallel/base/digest.h"
#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/values/tag.h"

namespace meshrun::ucx {

// An address is unique among processes alive, and UCX's holds a random number of its worker.
Connections::Connections(Transport& transport, uint64_t host, const SharedHeap* heap,
                         Actions& actions)
    : transport_(transport),
      host_(host),
      process_(digest_of(transport.address())),
      heap_(heap),
      actions_(actions) {
  host_of_process_[process_] = host_;
}

AddressRecord Connections::record(const MemberGroup& g) const {
  AddressRecord record;
  record.process = process_;
  record.world_rank = g.members[g.config->rank].world_rank;
  record.group = g.number;
  record.host = host_;
  record.algorithm_version = kAlgorithmVersion;
  record.checks_headers = g.config->check_headers;
  if (heap_ != nullptr) record.heap = heap_->address();
  record.transport_address = transport_.address();
  return record;
}

std::vector<int> Connections::missing(const RunningOperation& operation) const {
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

void Connections::look_up(MemberGroup& g, const std::vector<int>& ranks) {
  Actions::LookUp look_up{g.number, {}};
  for (const int rank : ranks) {
    Member& member = g.members[rank];
    if (member.state != Member::kUnknown) continue;
    member.state = Member::kLookingUp;
    look_up.ranks.push_back(rank);
  }
  if (!look_up.ranks.empty()) actions_.make_seldom().look_ups.push_back(std::move(look_up));
}

std::optional<Failure> Connections::refusal(const MemberGroup& g, int rank,
                                            const std::optional<AddressRecord>& record,
                                            const std::string& reason) {
  if (!record) {
    return Failure{FailureKind::kTransport,
                   fmt::format("rank {} of group \"{}\" cannot be reached from rank {}: {}", rank,
                               g.config->name, g.config->rank, reason),
                   {rank}};
  }
  if (record->group == 0 || record->group >= kMaxGroups) {
    return Failure{FailureKind::kInvalidArgument, too_many_groups(g.config->name, rank), {rank}};
  }
  return std::nullopt;
}

std::optional<Failure> Connections::connect(MemberGroup& g, int rank, const AddressRecord& theirs) {
  const AddressRecord own = record(g);
  Member& member = g.members[rank];
  if (member.state != Member::kKnown) ++g.known;
  member.state = Member::kKnown;
  member.peer = transport_.connect(theirs.transport_address);
  member.group = theirs.group;
  world_rank_of_[member.peer] = member.world_rank;
  host_of_process_[theirs.process] = theirs.host;
  member.shares = may_share(own.heap, theirs.heap);
  if (member.shares) {
    const auto [entry, is_new] = heap_of_process_.try_emplace(theirs.process);
    if (is_new) entry->second = PeerHeap::open(theirs.heap);
    member.heap = entry->second.get();
  }
  if (theirs.algorithm_version == own.algorithm_version &&
      theirs.checks_headers == own.checks_headers) {
    return std::nullopt;
  }
  return Failure{
      FailureKind::kMismatch,
      fmt::format("ranks of group \"{}\" run different programs: rank {} has collective "
                  "algorithms of version {}, rank {} of version {}; rank {} checks headers: {}, "
                  "rank {}: {}. Set MESHRUN_CHECK_COLLECTIVES alike, and use one build.",
                  g.config->name, g.config->rank, own.algorithm_version, rank,
                  theirs.algorithm_version, g.config->rank, own.checks_headers, rank,
                  theirs.checks_headers),
      {g.config->rank, rank}};
}

// Few programs send to themselves.
PeerId Connections::connect_to_self(MemberGroup& g, int rank) {
  return g.members[rank].peer = transport_.connect(transport_.address());
}

std::optional<int> Connections::world_rank_of(PeerId peer) const {
  const auto found = world_rank_of_.find(peer);
  if (found == world_rank_of_.end()) return std::nullopt;
  return found->second;
}

int Connections::local_ranks() const {
  return static_cast<int>(std::count_if(host_of_process_.begin(), host_of_process_.end(),
                                        [&](const auto& e) { return e.second == host_; }));
}

}  // namespace meshrun::ucx
