#include <algorithm>
#include <optional>
#include <vector>

#include "parallel/comm/ucx/engine/planning/messages.h"
#include "parallel/comm/ucx/engine/planning/two_levels.h"

namespace meshrun::ucx {
namespace {

// A piece is cut so that all ranks of a host take part in bringing it in, but not shorter.
constexpr int64_t kShortestPart = 16 << 10;

int64_t part_bytes(int64_t bytes, int ranks, int64_t longest) {
  return std::min(longest, std::max((bytes + ranks - 1) / ranks, kShortestPart));
}

// One leader a host: the root, and the others' first ranks.
void broadcast_by_leaders(ScheduleBuilder& builder, const Place& place, const Piece& tensor,
                          int root) {
  const Hosts& hosts = *place.hosts;
  const int root_host = hosts.host_of(root), here = hosts.host_of(place.rank);
  const auto leader = [&](int host) {
    return host == root_host ? root : hosts.ranks(host).front();
  };
  const auto leader_at = [&](int position) {
    return leader((position + root_host) % hosts.count());
  };
  PieceScheduler scheduler(builder, place);
  if (place.rank != leader(here)) {
    scheduler.receive(leader(here), kOutput, tensor);
    return;
  }
  const int position = (here - root_host + hosts.count()) % hosts.count();
  std::vector<int> others;
  for (const int mate : hosts.ranks(here)) {
    if (mate != place.rank) others.push_back(mate);
  }
  broadcast_in_tree(scheduler, tensor, position, hosts.count(), leader_at, others);
}

void broadcast_in_chunks(ScheduleBuilder& builder, const Place& place, const Piece& tensor,
                         int root) {
  const Hosts& hosts = *place.hosts;
  const int root_host = hosts.host_of(root), here = hosts.host_of(place.rank);
  const int others = hosts.count() - 1;
  const int64_t bytes = tensor.layout.bytes();
  const int64_t parts = int64_t{others} * hosts.most_ranks();
  const Messages cut(bytes, tensor.cut, place.tuning, place.tuning.messages,
                     std::min((bytes + parts - 1) / parts, place.tuning.staged_message));
  const bool is_root = place.rank == root;
  const Home home = is_root ? kInput : kOutput;
  const bool staged = !tensor.layout.is_contiguous();
  const Home packed = staged ? Home{Space::kScratch, 0, builder.scratch(bytes).offset} : home;
  const Layout contiguous{1, bytes, bytes};
  std::vector<Lane> out(static_cast<size_t>(place.size)), in(static_cast<size_t>(place.size));
  Slots unused(1);

  for (int64_t k = 0; k < cut.count(); ++k) {
    // The host to which the root sends the chunk, and the rank of each host that brings it in.
    const int first = static_cast<int>((root_host + 1 + k % others) % hosts.count());
    const auto entry = [&](int host) {
      const auto ranks = hosts.ranks(host);
      return host == root_host ? root : ranks[static_cast<size_t>(k / others) % ranks.size()];
    };
    const Region region = packed.region(cut.at(k));
    std::optional<StepId> there;
    if (is_root) {
      if (staged) there = builder.copy(home.region(cut.at(k)), region);
    } else {
      const int from = place.rank != entry(here) ? entry(here)
                       : here == first           ? root
                                                 : entry(first);
      there =
          receive_message(builder, in[static_cast<size_t>(from)], unused, from, region, contiguous);
    }
    const auto send = [&](int to) {
      send_message(builder, out[static_cast<size_t>(to)], unused, to, region, contiguous, there);
    };
    if (is_root) send(entry(first));
    if (!is_root && place.rank == entry(first)) {
      for (int d = 1; d < hosts.count(); ++d) {
        const int host = (first + d) % hosts.count();
        if (host != root_host) send(entry(host));
      }
    }
    if (place.rank == entry(here)) {
      const auto mates = hosts.ranks(here);
      for (size_t d = 1; d < mates.size(); ++d) {
        send(mates[(static_cast<size_t>(hosts.place_of(place.rank)) + d) % mates.size()]);
      }
    }
    if (staged && !is_root) builder.copy(region, home.region(cut.at(k)), {*there});
  }
}

// Own pieces to the ranks of this host, each directly.
void all_gather_inside(ScheduleBuilder& builder, const Place& place, const Piece& own,
                       std::span<const Piece> pieces) {
  const auto mates = place.hosts->ranks(place.hosts->host_of(place.rank));
  const auto position = static_cast<size_t>(place.hosts->place_of(place.rank));
  Place inside = place;
  inside.size = static_cast<int>(mates.size());
  PieceScheduler scheduler(builder, inside);
  const bool packs = mates.size() > 2 && own.cut >= own.layout.bytes();
  const PieceScheduler::Packed packed =
      packs ? scheduler.pack(kInput, own) : PieceScheduler::Packed{kInput, own, {}};
  for (size_t d = 1; d < mates.size(); ++d) {
    const int above = mates[(position + d) % mates.size()];
    const int below = mates[(position + mates.size() - d) % mates.size()];
    scheduler.send(above, packed.home, packed.piece, packed.packed);
    scheduler.receive(below, {Space::kOutput, below, 0}, pieces[static_cast<size_t>(below)]);
  }
}

// What is staged is packed again to be passed on, as in a ring.
void all_gather_between(ScheduleBuilder& builder, const Place& place, const Piece& own,
                        std::span<const Piece> pieces) {
  const Hosts& hosts = *place.hosts;
  const int here = hosts.host_of(place.rank);
  const auto mates = hosts.ranks(here);
  const std::vector<int64_t> bytes = bytes_of(pieces);
  const std::vector<int64_t> shares = share_messages(place.tuning.messages, bytes);
  std::vector<Messages> cut;
  int64_t most = 0;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    const Piece& piece = static_cast<int>(rank) == place.rank ? own : pieces[rank];
    cut.emplace_back(bytes[rank], piece.cut, place.tuning, shares[rank],
                     part_bytes(bytes[rank], hosts.most_ranks(), place.tuning.ring_message));
    most = std::max(most, cut.back().count());
  }
  // Packed once for several hosts.
  const bool packs = hosts.count() > 2 && !own.layout.is_contiguous();
  const int64_t own_bytes = own.layout.bytes();
  const Home home = packs ? Home{Space::kScratch, 0, builder.scratch(own_bytes).offset} : kInput;

  struct Channel {
    Lane lane;
    Slots slots{kMessagesInFlight};
  };
  const auto channels = [](size_t peers) {
    return std::vector<Channel>(std::min<size_t>(peers, kWindow));
  };
  std::vector<Channel> to_hosts = channels(static_cast<size_t>(hosts.count())),
                       to_mates = channels(mates.size()),
                       from_hosts = channels(static_cast<size_t>(place.size)),
                       from_mates = channels(mates.size());
  const auto channel = [](std::vector<Channel>& all, int peer) -> Channel& {
    return all[static_cast<size_t>(peer) % all.size()];
  };
  for (int64_t k = 0; k < most; ++k) {
    for (int rank = 0; rank < place.size; ++rank) {
      const auto at = static_cast<size_t>(rank);
      if (k >= cut[at].count()) continue;
      const int host = hosts.host_of(rank);
      const auto entry = [&](int to) {
        const auto ranks = hosts.ranks(to);
        return ranks[static_cast<size_t>(k + hosts.place_of(rank)) % ranks.size()];
      };
      if (rank == place.rank) {
        const Region region = home.region(cut[at].at(k));
        const Layout layout = packs ? Layout{1, own_bytes, own_bytes} : own.layout;
        std::optional<StepId> packed;
        if (packs) packed = builder.copy(kInput.region(cut[at].at(k)), region);
        for (int d = 1; d < hosts.count(); ++d) {
          const int other = (host + d) % hosts.count();
          Channel& out = channel(to_hosts, other);
          send_message(builder, out.lane, out.slots, entry(other), region, layout, packed);
        }
      }
      if (host == here) continue;
      const Region region = Home{Space::kOutput, rank, 0}.region(cut[at].at(k));
      const Layout& layout = pieces[at].layout;
      if (place.rank != entry(here)) {
        Channel& in = channel(from_mates, hosts.place_of(entry(here)));
        receive_message(builder, in.lane, in.slots, entry(here), region, layout);
        continue;
      }
      Channel& in = channel(from_hosts, rank);
      const StepId there = receive_message(builder, in.lane, in.slots, rank, region, layout);
      for (size_t d = 1; d < mates.size(); ++d) {
        const size_t place_of_mate =
            (static_cast<size_t>(hosts.place_of(place.rank)) + d) % mates.size();
        Channel& out = channel(to_mates, static_cast<int>(place_of_mate));
        send_message(builder, out.lane, out.slots, mates[place_of_mate], region, layout, there);
      }
    }
  }
}

}  // namespace

void all_gather_in_two_levels(ScheduleBuilder& builder, const Place& place, const Piece& own,
                              std::span<const Piece> pieces) {
  // Half of the messages of a pair each: own pieces, and what is passed on.
  Place half = place;
  half.tuning.messages = std::max<int64_t>(1, place.tuning.messages / 2);
  all_gather_inside(builder, half, own, pieces);
  all_gather_between(builder, half, own, pieces);
}

void broadcast_in_two_levels(ScheduleBuilder& builder, const Place& place, const Piece& tensor,
                             int root) {
  if (tensor.layout.bytes() <= place.tuning.small_broadcast) {
    broadcast_by_leaders(builder, place, tensor, root);
  } else {
    broadcast_in_chunks(builder, place, tensor, root);
  }
}

}  // namespace meshrun::ucx
