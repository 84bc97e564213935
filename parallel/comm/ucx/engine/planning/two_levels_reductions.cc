#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/comm/ucx/engine/planning/messages.h"
#include "parallel/comm/ucx/engine/planning/two_levels.h"

namespace meshrun::ucx {
namespace {

// A partial travels to the owner while the next chunks are added.
constexpr int kPartialsInFlight = 4;
// A chunk is cut so that all ranks of a host have some, but not shorter.
constexpr int64_t kShortestChunk = 4 << 10;

// The two reductions in a schedule's list.
constexpr uint32_t kFirst = 0, kSecond = 1;

Schedule finish(ScheduleBuilder&& builder, const Reduction& reduction) {
  return std::move(builder).finish({reduction.at(Level::kFirst), reduction.at(Level::kSecond)});
}

// In whole elements; `part` is what is dealt to the ranks of a host.
int64_t chunk_bytes(const Place& place, int64_t part) {
  if (place.tuning.reduce_chunk > 0) return place.tuning.reduce_chunk;
  const int most = place.hosts->most_ranks();
  return std::clamp((part + most - 1) / most, kShortestChunk,
                    reduce_chunk_bytes(most + place.hosts->count()));
}

// What is added at once. `contribution`: where each rank has its own.
struct Chunk {
  int owner = 0;
  int64_t turn = 0;  // picks the reducers of the other hosts
  Region contribution;
  const Layout* layout = nullptr;  // of the piece in which that lies
};

class ChunkReducer {
 public:
  // No chunk has more than `longest` bytes.
  ChunkReducer(ScheduleBuilder& builder, const Place& place, const Reduction& reduction,
               int64_t longest)
      : builder_(builder),
        hosts_(*place.hosts),
        rank_(place.rank),
        here_(hosts_.host_of(place.rank)),
        mates_(hosts_.ranks(here_)),
        longest_(longest),
        element_(element_size(reduction.dtype)),
        partial_element_(element_size(reduction.partial())),
        keeps_type_(reduction.partial() == reduction.dtype),
        to_mates_(lanes(mates_.size())),
        staging_(to_mates_.size(), Slots(slots_per_lane(place.tuning, lanes_of(mates_.size())))),
        to_hosts_(lanes(static_cast<size_t>(hosts_.count()))),
        contributions_(mates_.size(), Slots(kPartialsInFlight)),
        partials_(static_cast<size_t>(hosts_.count()), Slots(kPartialsInFlight)) {}

  // The rank of a host that adds up its contributions to the chunk.
  int reducer(int host, const Chunk& chunk) const {
    if (host == hosts_.host_of(chunk.owner)) return chunk.owner;
    const auto ranks = hosts_.ranks(host);
    return ranks[static_cast<size_t>(chunk.turn) % ranks.size()];
  }
  int reducer_here(const Chunk& chunk) const { return reducer(here_, chunk); }

  // To `target`, at the owner. The step after which it is there; at the others the step after which
  // the contribution may be overwritten.
  StepId reduce(const Chunk& chunk, Region target) {
    const int reducer = reducer_here(chunk);
    if (reducer != rank_) return contribute(chunk, reducer);
    const Partial own = add_contributions(chunk);
    if (chunk.owner != rank_) {
      const StepId sent = send_partial(own, chunk.owner);
      return own.step.value_or(sent);
    }
    return add_partials(chunk, own, target, {});
  }

  // The same at the first rank of each host, into its contribution's place: all exchange their
  // partials. `chunk.owner` is the first rank of the caller's host, its `turn` 0.
  StepId exchange(const Chunk& chunk) {
    if (chunk.owner != rank_) return contribute(chunk, chunk.owner);
    const Partial own = add_contributions(chunk);
    std::vector<StepId> before;  // a contribution may be what is sent
    for (int d = 1; d < hosts_.count(); ++d) {
      before.push_back(send_partial(own, hosts_.ranks((here_ + d) % hosts_.count()).front()));
    }
    return add_partials(chunk, own, chunk.contribution, std::move(before));
  }

 private:
  // This host's sum: in a slot, or where the contribution lies.
  struct Partial {
    Region region;
    const Layout* layout = nullptr;
    std::optional<StepId> step;  // that makes it; absent: it is there
    Slots::Slot* slot = nullptr;
  };

  static int lanes_of(size_t peers) {
    return static_cast<int>(std::clamp<size_t>(peers, 1, kWindow));
  }
  static std::vector<Lane> lanes(size_t peers) {
    return std::vector<Lane>(static_cast<size_t>(lanes_of(peers)));
  }

  // All slots are as long as the longest chunk asks for: chunks of any length use them again.
  Slots::Slot& take(Slots& slots, int64_t count, bool is_partial) {
    const int64_t size = is_partial ? partial_element_ : element_;
    Slots::Slot& slot = slots.take(builder_, longest_ / element_ * size);
    slot.region.bytes = count * size;
    return slot;
  }
  void wait_for_slot(StepId step, const Slots::Slot& slot) {
    if (slot.user) builder_.add_dependency(step, *slot.user);
  }

  StepId contribute(const Chunk& chunk, int reducer) {
    const size_t lane = static_cast<size_t>(hosts_.place_of(reducer)) % to_mates_.size();
    return send_message(builder_, to_mates_[lane], staging_[lane], reducer, chunk.contribution,
                        *chunk.layout);
  }

  Partial add_contributions(const Chunk& chunk) {
    const Region& own = chunk.contribution;
    if (mates_.size() == 1 && keeps_type_ && chunk.layout->is_contiguous(own.offset, own.bytes)) {
      return {own, chunk.layout, {}, nullptr};
    }
    const int64_t count = own.bytes / element_;
    sources_.clear();
    after_.clear();
    used_.clear();
    for (size_t place = 0; place < mates_.size(); ++place) {
      if (mates_[place] == rank_ && chunk.layout->is_contiguous(own.offset, own.bytes)) {
        sources_.push_back(own);
        continue;
      }
      Slots::Slot& slot = take(contributions_[place], count, false);
      const StepId step = mates_[place] == rank_ ? builder_.copy(own, slot.region)
                                                 : builder_.receive(mates_[place], slot.region);
      wait_for_slot(step, slot);
      sources_.push_back(slot.region);
      after_.push_back(step);
      used_.push_back(&slot);
    }
    Slots::Slot& slot = take(partials_[static_cast<size_t>(here_)], count, true);
    const StepId step = builder_.reduce(sources_, slot.region, after_, kFirst);
    wait_for_slot(step, slot);
    for (Slots::Slot* each : used_) each->user = step;
    slot.user = step;
    return {slot.region, nullptr, step, &slot};
  }

  StepId send_partial(const Partial& own, int to) {
    const StepId sent = builder_.send(to, own.region);
    if (own.step) builder_.add_dependency(sent, *own.step);
    to_hosts_[static_cast<size_t>(hosts_.host_of(to)) % to_hosts_.size()].add(builder_, sent);
    // The next that writes to the slot waits for this send; where there are several, they are all
    // before the sum that add_partials() makes.
    if (own.slot != nullptr) own.slot->user = sent;
    return sent;
  }

  StepId add_partials(const Chunk& chunk, const Partial& own, Region target,
                      std::vector<StepId> after) {
    const int64_t count = chunk.contribution.bytes / element_;
    sources_.clear();
    used_.clear();
    for (int host = 0; host < hosts_.count(); ++host) {
      if (host == here_) {
        sources_.push_back(own.region);
        if (own.step) after.push_back(*own.step);
        if (own.slot != nullptr) used_.push_back(own.slot);
        continue;
      }
      Slots::Slot& slot = take(partials_[static_cast<size_t>(host)], count, true);
      const StepId step = builder_.receive(reducer(host, chunk), slot.region);
      wait_for_slot(step, slot);
      sources_.push_back(slot.region);
      after.push_back(step);
      used_.push_back(&slot);
    }
    const StepId step = builder_.reduce(sources_, target, after, kSecond);
    for (Slots::Slot* each : used_) each->user = step;
    return step;
  }

  ScheduleBuilder& builder_;
  const Hosts& hosts_;
  const int rank_, here_;
  const std::span<const int> mates_;  // and this rank
  const int64_t longest_, element_, partial_element_;
  const bool keeps_type_;
  std::vector<Lane> to_mates_;
  std::vector<Slots> staging_;
  std::vector<Lane> to_hosts_;
  std::vector<Slots> contributions_;  // by place on this host
  std::vector<Slots> partials_;       // by host
  std::vector<Region> sources_;
  std::vector<StepId> after_;
  std::vector<Slots::Slot*> used_;
};

// Results of chunks on their way to the ranks of a host, and of the other hosts.
class ResultSender {
 public:
  ResultSender(ScheduleBuilder& builder, const Place& place)
      : builder_(builder),
        place_(place),
        hosts_(*place.hosts),
        mates_(hosts_.ranks(hosts_.host_of(place.rank))),
        to_mates_(std::min<size_t>(mates_.size(), kWindow)),
        to_hosts_(std::min<size_t>(static_cast<size_t>(hosts_.count()), kWindow)) {}

  void to_mates(Region region, StepId after) {
    for (size_t d = 1; d < mates_.size(); ++d) {
      const size_t place = (static_cast<size_t>(hosts_.place_of(place_.rank)) + d) % mates_.size();
      to_mates_[place % to_mates_.size()].add(builder_,
                                              builder_.send(mates_[place], region, {after}));
    }
  }
  void to_host(int host, int rank, Region region, StepId after) {
    to_hosts_[static_cast<size_t>(host) % to_hosts_.size()].add(
        builder_, builder_.send(rank, region, {after}));
  }

 private:
  ScheduleBuilder& builder_;
  const Place& place_;
  const Hosts& hosts_;
  const std::span<const int> mates_;
  std::vector<Lane> to_mates_, to_hosts_;
};

void all_reduce_exchange(ScheduleBuilder& builder, const Place& place, int64_t bytes,
                         const Reduction& reduction) {
  const Hosts& hosts = *place.hosts;
  const Layout layout{1, bytes, bytes};
  const int first = hosts.ranks(hosts.host_of(place.rank)).front();
  ChunkReducer reducer(builder, place, reduction, bytes);
  const Chunk chunk{first, 0, kOutput.region({0, bytes}), &layout};
  const StepId done = reducer.exchange(chunk);
  if (place.rank == first) {
    ResultSender(builder, place).to_mates(chunk.contribution, done);
  } else {
    builder.receive(first, chunk.contribution, {done});
  }
}

void all_reduce_chunked(ScheduleBuilder& builder, const Place& place, int64_t count,
                        const Reduction& reduction) {
  const Hosts& hosts = *place.hosts;
  const int64_t element = element_size(reduction.dtype);
  const Layout layout{1, count * element, count * element};
  // Hosts that own a share: between two ranks each share has a message at least.
  const auto shares = static_cast<int>(std::min<int64_t>(hosts.count(), place.tuning.messages));
  const auto begin = [&](int host) {
    return (count / shares * host + count % shares * host / shares) * element;
  };
  std::vector<Messages> parts;
  int64_t longest = element, most = 0;
  for (int host = 0; host < shares; ++host) {
    const int64_t bytes = begin(host + 1) - begin(host);
    parts.emplace_back(bytes, bytes, place.tuning, place.tuning.messages / shares,
                       chunk_bytes(place, bytes), element);
    most = std::max(most, parts.back().count());
    if (parts.back().count() > 0) longest = std::max(longest, parts.back().at(0).bytes);
  }
  ChunkReducer reducer(builder, place, reduction, longest);
  ResultSender results(builder, place);
  for (int64_t k = 0; k < most; ++k) {
    for (int host = 0; host < shares; ++host) {
      const Messages& part = parts[static_cast<size_t>(host)];
      if (k >= part.count()) continue;
      const auto owners = hosts.ranks(host);
      Messages::Range range = part.at(k);
      range.offset += begin(host);
      const Chunk chunk{owners[static_cast<size_t>(k) % owners.size()], k, kOutput.region(range),
                        &layout};
      const Region& region = chunk.contribution;
      const StepId done = reducer.reduce(chunk, region);
      if (place.rank == chunk.owner) {
        for (int d = 1; d < hosts.count(); ++d) {
          const int other = (host + d) % hosts.count();
          results.to_host(other, reducer.reducer(other, chunk), region, done);
        }
        results.to_mates(region, done);
      } else if (place.rank == reducer.reducer_here(chunk)) {
        results.to_mates(region, builder.receive(chunk.owner, region, {done}));
      } else {
        builder.receive(reducer.reducer_here(chunk), region, {done});
      }
    }
  }
}

}  // namespace

bool has_two_levels(const Place& place) {
  return place.hosts != nullptr && place.hosts->has_two_levels() &&
         place.tuning.messages >= 4 * int64_t{place.size};
}

bool all_reduces_in_two_levels(const Place& place) {
  return place.hosts != nullptr && place.hosts->has_two_levels() && !place.in_rank_order;
}

bool reduce_scatters_in_two_levels(const Place& place) {
  return has_two_levels(place) && !place.in_rank_order;
}

Schedule all_reduce_in_two_levels(const Place& place, int64_t count, const Reduction& reduction) {
  ScheduleBuilder builder(place.size);
  const int64_t bytes = count * element_size(reduction.dtype);
  if (bytes <= place.tuning.small_all_reduce / (place.hosts->count() - 1)) {
    all_reduce_exchange(builder, place, bytes, reduction);
  } else {
    all_reduce_chunked(builder, place, count, reduction);
  }
  return finish(std::move(builder), reduction);
}

Schedule reduce_scatter_in_two_levels(const Place& place, std::span<const Piece> pieces,
                                      const Piece& own, const Reduction& reduction) {
  ScheduleBuilder builder(place.size);
  const int64_t element = element_size(reduction.dtype);
  const std::vector<int64_t> bytes = bytes_of(pieces);
  const std::vector<int64_t> shares = share_messages(place.tuning.messages, bytes);
  std::vector<Messages> cut;
  int64_t longest = element, most = 0;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    const Messages messages(bytes[rank], pieces[rank].cut, place.tuning, shares[rank],
                            chunk_bytes(place, bytes[rank]), element);
    most = std::max(most, messages.count());
    for (int64_t k = 0; k < messages.count(); ++k) {
      longest = std::max(longest, messages.at(k).bytes);
    }
    cut.push_back(messages);
  }
  ChunkReducer reducer(builder, place, reduction, longest);
  Slots results(2);
  for (int64_t k = 0; k < most; ++k) {
    for (int owner = 0; owner < place.size; ++owner) {
      const auto at = static_cast<size_t>(owner);
      if (k >= cut[at].count()) continue;
      const Messages::Range range = cut[at].at(k);
      const Chunk chunk{owner, k + place.hosts->place_of(owner),
                        Home{Space::kInput, owner, 0}.region(range), &pieces[at].layout};
      const Region target = kOutput.region(range);
      if (owner != place.rank || own.layout.is_contiguous(target.offset, target.bytes)) {
        reducer.reduce(chunk, target);
        continue;
      }
      Slots::Slot& slot = results.take(builder, target.bytes);
      const StepId reduced = reducer.reduce(chunk, slot.region);
      if (slot.user) builder.add_dependency(reduced, *slot.user);
      slot.user = builder.copy(slot.region, target, {reduced});
    }
  }
  return finish(std::move(builder), reduction);
}

}  // namespace meshrun::ucx
