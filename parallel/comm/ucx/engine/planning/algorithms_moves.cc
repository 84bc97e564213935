// Operations that move bytes and compute nothing.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "parallel/base/prefetch.h"
#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/planning/messages.h"
#include "parallel/comm/ucx/engine/planning/piggyback.h"
#include "parallel/comm/ucx/engine/planning/two_levels.h"

namespace meshrun::ucx {
namespace {

// Ranks by distance: sends go up, receives come from below, so that at any time each rank is the
// target of as few as possible.
int above(const Place& place, int distance) { return (place.rank + distance) % place.size; }
int below(const Place& place, int distance) {
  return (place.rank - distance + place.size) % place.size;
}

void broadcast_flat(ScheduleBuilder& builder, const Place& place, const Piece& tensor, int root) {
  builder.set_offers(OfferRule::kFetched);
  PieceScheduler scheduler(builder, place);
  if (place.rank != root) {
    scheduler.receive(root, kOutput, tensor);
    return;
  }
  const PieceScheduler::Packed own = scheduler.pack(kInput, tensor);
  for (int d = 1; d < place.size; ++d) {
    scheduler.send(above(place, d), own.home, own.piece, own.packed);
  }
}

void broadcast_binomial(ScheduleBuilder& builder, const Place& place, const Piece& tensor,
                        int root) {
  PieceScheduler scheduler(builder, place);
  const int position = (place.rank - root + place.size) % place.size;
  broadcast_in_tree(scheduler, tensor, position, place.size,
                    [&](int at) { return (at + root) % place.size; });
}

// The root deals the messages out, each to one rank, which passes it on to all others: the root
// sends the tensor once and a share instead of P - 1 times.
void broadcast_scatter_all_gather(ScheduleBuilder& builder, const Place& place, const Piece& tensor,
                                  int root) {
  const int64_t bytes = tensor.layout.bytes();
  const int64_t share = (bytes + place.size - 1) / place.size;
  // From the root to another rank go the messages of both.
  const int64_t most = std::max<int64_t>(1, most_messages(place) / 2) * place.size;
  const Messages cut(bytes, tensor.cut, place.tuning, most,
                     std::min(share, place.tuning.staged_message));
  const bool is_root = place.rank == root;
  const Home home = is_root ? kInput : kOutput;
  const bool staged = !tensor.layout.is_contiguous();
  const Home packed = staged ? Home{Space::kScratch, 0, builder.scratch(bytes).offset} : home;
  const Layout contiguous{1, bytes, bytes};
  std::vector<Lane> out(static_cast<size_t>(place.size)), in(static_cast<size_t>(place.size));
  Slots unused(1);

  for (int64_t k = 0; k < cut.count(); ++k) {
    // By position above the root, so that the shares are as equal as they can be.
    const int owner = static_cast<int>((k * place.size / cut.count() + root) % place.size);
    const Region region = packed.region(cut.at(k));
    std::optional<StepId> there;
    if (is_root) {
      if (staged) there = builder.copy(home.region(cut.at(k)), region);
    } else {
      const int from = owner == place.rank ? root : owner;
      there = receive_message(builder, in[from], unused, from, region, contiguous);
    }
    for (int d = 1; d < place.size; ++d) {
      const int to = above(place, d);
      if (is_root ? owner != root && to != owner : owner != place.rank || to == root) continue;
      send_message(builder, out[to], unused, to, region, contiguous, there);
    }
    if (staged && !is_root) builder.copy(region, home.region(cut.at(k)), {*there});
  }
}

// Each rank passes on what it last received, cut small enough that all links are busy with pieces
// of very different sizes too. What is staged is packed again to be passed on: if a slot were kept
// until then, slots could be full of messages that wait for each other around the ring.
void all_gather_ring(ScheduleBuilder& builder, const Place& place, const Piece& own,
                     std::span<const Piece> pieces) {
  Lane out, in;
  Slots out_slots(kMessagesInFlight), in_slots(kMessagesInFlight);
  // All pieces but one go from each rank to the next.
  const std::vector<int64_t> most = share_messages(place.tuning.messages, bytes_of(pieces));
  const auto cut_of = [&](const Piece& piece, int rank) {
    return Messages(piece.layout.bytes(), piece.cut, place.tuning, most[rank],
                    place.tuning.ring_message);
  };
  std::vector<StepId> there;  // of the piece that is sent next
  for (int step = 0; step + 1 < place.size; ++step) {
    const int sent = below(place, step), received = below(place, step + 1);
    const Piece& piece = step == 0 ? own : pieces[sent];
    const Home home = step == 0 ? kInput : output(sent);
    const Messages outgoing = cut_of(piece, sent);
    for (int64_t k = 0; k < outgoing.count(); ++k) {
      send_message(builder, out, out_slots, above(place, 1), home.region(outgoing.at(k)),
                   piece.layout, step == 0 ? std::nullopt : std::optional(there[k]));
    }
    there.clear();
    const Messages incoming = cut_of(pieces[received], received);
    for (int64_t k = 0; k < incoming.count(); ++k) {
      there.push_back(receive_message(builder, in, in_slots, below(place, 1),
                                      output(received).region(incoming.at(k)),
                                      pieces[received].layout));
    }
  }
}

// Bytes at the beginning of a piece that its rank does not fetch: the root of a scatter writes
// them, where that rank's memory can be reached. It writes small pieces faster than the kernel
// fetches them, and pieces that are cut into rows without packing them. If large pieces are one
// message each, each rank fetches its own while the root copies; from a cache the root copies
// faster than they fetch, and writes a part meanwhile.
int64_t written_by_root(const Place& place, const Piece& piece) {
  const int64_t bytes = piece.layout.bytes();
  if (!place.one_host || piece.cut < bytes ||
      bytes * (place.size - 1) <= place.tuning.written_by_root) {
    return bytes;
  }
  const int64_t part = bytes / (2 * place.size) / kCacheLine * kCacheLine;
  return bytes <= place.tuning.in_cache && part >= place.tuning.least_part ? part : 0;
}

}  // namespace

BroadcastAlgorithm choose_broadcast(const Place& place, int64_t bytes) {
  if (place.size <= 2 || place.one_host) return BroadcastAlgorithm::kFlat;
  return bytes <= place.tuning.small_broadcast ? BroadcastAlgorithm::kBinomial
                                               : BroadcastAlgorithm::kScatterAllGather;
}

AllGatherAlgorithm choose_all_gather(const Place& place, std::span<const int64_t> piece_bytes) {
  if (place.size <= 2 || place.one_host) return AllGatherAlgorithm::kDirect;
  // A ring has a message at least for each piece.
  if (place.size > place.tuning.messages / 2) return AllGatherAlgorithm::kDirect;
  const auto [least, most] = std::minmax_element(piece_bytes.begin(), piece_bytes.end());
  const int64_t all = std::accumulate(piece_bytes.begin(), piece_bytes.end(), int64_t{0});
  // Direct, the busiest sender sends (P - 1) s_max; no rank can receive less than S - s_min.
  const double sent = static_cast<double>(place.size - 1) * static_cast<double>(*most);
  return sent <= 1.1 * static_cast<double>(all - *least) ? AllGatherAlgorithm::kDirect
                                                         : AllGatherAlgorithm::kRing;
}

Schedule plan_barrier(const Place& place) {
  ScheduleBuilder builder(place.size);
  std::vector<StepId> heard;  // a message says that its sender has heard all earlier ones
  for (int distance = 1; distance < place.size; distance *= 2) {
    const StepId sent = builder.send(above(place, distance), {});
    for (StepId earlier : heard) builder.add_dependency(sent, earlier);
    heard.push_back(builder.receive(below(place, distance), {}));
  }
  return std::move(builder).finish();
}

Schedule plan_broadcast(const Place& place, const Piece& tensor, int root) {
  if (auto carried = piggyback_broadcast(place, tensor, root)) return *std::move(carried);
  ScheduleBuilder builder(place.size);
  if (has_two_levels(place)) {
    broadcast_in_two_levels(builder, place, tensor, root);
    return std::move(builder).finish();
  }
  switch (choose_broadcast(place, tensor.layout.bytes())) {
    case BroadcastAlgorithm::kFlat:
      broadcast_flat(builder, place, tensor, root);
      break;
    case BroadcastAlgorithm::kBinomial:
      broadcast_binomial(builder, place, tensor, root);
      break;
    case BroadcastAlgorithm::kScatterAllGather:
      broadcast_scatter_all_gather(builder, place, tensor, root);
      break;
  }
  return std::move(builder).finish();
}

Schedule plan_all_gather(const Place& place, const Piece& own, std::span<const Piece> pieces,
                         bool in_place) {
  if (auto carried = piggyback_all_gather(place, own, pieces, in_place)) return *std::move(carried);
  ScheduleBuilder builder(place.size);
  const std::vector<int64_t> bytes = bytes_of(pieces);
  if (has_two_levels(place)) {
    all_gather_in_two_levels(builder, place, own, pieces);
  } else if (choose_all_gather(place, bytes) == AllGatherAlgorithm::kRing) {
    all_gather_ring(builder, place, own, pieces);
  } else {
    PieceScheduler scheduler(builder, place);
    // Packs once for all receivers, except short rows on one host: senders can write those where
    // they belong.
    const bool packs = place.size > 2 && (!place.one_host || own.cut >= own.layout.bytes());
    const PieceScheduler::Packed packed =
        packs ? scheduler.pack(kInput, own) : PieceScheduler::Packed{kInput, own, {}};
    for (int d = 1; d < place.size; ++d) {
      scheduler.send(above(place, d), packed.home, packed.piece, packed.packed);
      scheduler.receive(below(place, d), output(below(place, d)), pieces[below(place, d)]);
    }
  }
  if (!in_place) copy_piece(builder, kInput, output(place.rank), own.layout.bytes());
  return std::move(builder).finish();
}

Schedule plan_gather(const Place& place, const Piece& own, std::span<const Piece> pieces,
                     std::span<const int64_t> piece_bytes, int root) {
  if (auto carried = piggyback_gather(place, piece_bytes, root)) return *std::move(carried);
  ScheduleBuilder builder(place.size);
  PieceScheduler scheduler(builder, place);
  if (place.rank != root) {
    scheduler.send(root, kInput, own);
  } else {
    for (int d = 1; d < place.size; ++d) {
      scheduler.receive(below(place, d), output(below(place, d)), pieces[below(place, d)]);
    }
    copy_piece(builder, kInput, output(root), own.layout.bytes());
  }
  return std::move(builder).finish();
}

Schedule plan_scatter(const Place& place, std::span<const Piece> pieces, const Piece& own,
                      std::span<const int64_t> piece_bytes, int root) {
  if (auto carried = piggyback_scatter(place, piece_bytes, root)) return *std::move(carried);
  ScheduleBuilder builder(place.size);
  // Neither waits for the other.
  PieceScheduler written(builder, place), fetched(builder, place);
  if (place.rank != root) {
    const int64_t bytes = own.layout.bytes(), part = written_by_root(place, own);
    if (part == bytes) {
      written.receive(root, kOutput, own);
    } else {
      written.receive(root, kOutput, own.layout, {0, part});
      builder.set_offers(OfferRule::kFetched);
      fetched.receive(root, kOutput, own.layout, {part, bytes - part});
    }
  } else {
    for (int d = 1; d < place.size; ++d) {
      const int rank = above(place, d);
      const Piece& piece = pieces[rank];
      const int64_t bytes = piece.layout.bytes(), part = written_by_root(place, piece);
      builder.set_offers(OfferRule::kLarge);
      if (part == bytes) {
        written.send(rank, input(rank), piece);
      } else {
        written.send(rank, input(rank), piece.layout, {0, part});
        builder.set_offers(OfferRule::kFetched);
        fetched.send(rank, input(rank), piece.layout, {part, bytes - part});
      }
    }
    copy_piece(builder, input(root), kOutput, own.layout.bytes());
  }
  return std::move(builder).finish();
}

Schedule plan_all_to_all(const Place& place, std::span<const Piece> to,
                         std::span<const Piece> from) {
  ScheduleBuilder builder(place.size);
  builder.set_offers(OfferRule::kAll);
  PieceScheduler scheduler(builder, place);
  for (int d = 1; d < place.size; ++d) {
    scheduler.send(above(place, d), input(above(place, d)), to[above(place, d)]);
    scheduler.receive(below(place, d), output(below(place, d)), from[below(place, d)]);
  }
  copy_piece(builder, input(place.rank), output(place.rank), to[place.rank].layout.bytes());
  return std::move(builder).finish();
}

}  // namespace meshrun::ucx
