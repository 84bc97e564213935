// Operations that reduce. The elements are shared out. The owner of a slice receives all ranks'
// contributions to it, a chunk at a time, and adds them in rank order.
#include <algorithm>
#include <utility>
#include <vector>

#include "parallel/comm/ucx/engine/planning/algorithms.h"
#include "parallel/comm/ucx/engine/planning/messages.h"
#include "parallel/comm/ucx/engine/planning/piggyback.h"
#include "parallel/comm/ucx/engine/planning/two_levels.h"

namespace meshrun::ucx {
namespace {

constexpr int64_t kChunksInFlight = 2;

// What one rank reduces: where this rank's contribution to it lies, and how it is cut in chunks.
struct Slice {
  Home home;
  Layout layout;  // of the whole piece in which it lies
  Messages chunks;

  Region region(int64_t k) const { return home.region(chunks.at(k)); }
};

int64_t chunk_bytes(const Place& place) {
  return place.tuning.reduce_chunk > 0 ? place.tuning.reduce_chunk : reduce_chunk_bytes(place.size);
}

// A contiguous tensor's elements, shared out as evenly as they can be.
std::vector<Slice> slices_of(const Place& place, Home home, int64_t count, int64_t element) {
  // Contributions to a slice go one way, and results of another the same way.
  const int64_t most = most_messages(place) / 2;
  const Layout layout{1, count * element, count * element};
  const auto begin = [&](int rank) {
    return count / place.size * rank + count % place.size * rank / place.size;
  };
  std::vector<Slice> slices;
  for (int rank = 0; rank < place.size; ++rank) {
    const int64_t offset = begin(rank) * element;
    const int64_t bytes = begin(rank + 1) * element - offset;
    slices.push_back({{home.space, home.piece, home.base + offset},
                      layout,
                      Messages(bytes, bytes, place.tuning, most, chunk_bytes(place), element)});
  }
  return slices;
}

class SliceReduction {
 public:
  SliceReduction(ScheduleBuilder& builder, const Place& place, std::vector<Slice> slices)
      : builder_(builder), place_(place), slices_(std::move(slices)) {}

  const Slice& slice(int rank) const { return slices_[static_cast<size_t>(rank)]; }
  const Slice& own() const { return slice(place_.rank); }

  // Chunk by chunk, so that all owners can begin to add.
  void send_contributions() {
    const int count = std::clamp(place_.size - 1, 1, kWindow);
    std::vector<Lane> lanes(static_cast<size_t>(count));
    std::vector<Slots> slots(lanes.size(), Slots(slots_per_lane(place_.tuning, count)));
    sent_.resize(slices_.size());
    int64_t most = 0;
    for (const Slice& slice : slices_) most = std::max(most, slice.chunks.count());
    for (int64_t k = 0; k < most; ++k) {
      for (int d = 1; d < place_.size; ++d) {
        const int owner = (place_.rank + d) % place_.size;
        if (k >= slice(owner).chunks.count()) continue;
        const size_t lane = static_cast<size_t>((d - 1) % count);
        sent_[static_cast<size_t>(owner)].push_back(send_message(builder_, lanes[lane], slots[lane],
                                                                 owner, slice(owner).region(k),
                                                                 slice(owner).layout));
      }
    }
  }

  // The k-th send to the owner of a slice; from then on the own contribution may be overwritten.
  StepId sent(int owner, int64_t k) const {
    return sent_[static_cast<size_t>(owner)][static_cast<size_t>(k)];
  }

  // Receives the contributions to chunk k of the own slice and adds them up in `target`, which may
  // be the own contribution. Call with k = 0, 1, ... The step may be given one more to wait for.
  StepId reduce(int64_t k, Region target) {
    const Slice& mine = own();
    const Region own_chunk = mine.region(k);
    const int64_t bytes = own_chunk.bytes;
    const auto set = static_cast<size_t>(k % kChunksInFlight);
    if (slots_.size() <= set) slots_.emplace_back(slices_.size());
    std::vector<Region>& slots = slots_[set];
    const auto scratch = [&](int rank) {
      // The first chunks are the longest.
      Region& slot = slots[static_cast<size_t>(rank)];
      if (slot.bytes < bytes) slot = builder_.scratch(bytes);
      return Region{slot.space, slot.piece, slot.offset, bytes};
    };
    const auto wait_for_slot = [&](StepId step) {
      if (k >= kChunksInFlight) {
        builder_.add_dependency(step, reduced_[static_cast<size_t>(k - kChunksInFlight)]);
      }
    };
    sources_.clear();
    arrived_.clear();
    for (int rank = 0; rank < place_.size; ++rank) {
      if (rank != place_.rank) {
        const Region slot = scratch(rank);
        const StepId step = builder_.receive(rank, slot);
        wait_for_slot(step);
        sources_.push_back(slot);
        arrived_.push_back(step);
      } else if (mine.layout.is_contiguous(own_chunk.offset, bytes)) {
        sources_.push_back(own_chunk);
      } else {
        const Region slot = scratch(rank);
        const StepId step = builder_.copy(own_chunk, slot);
        wait_for_slot(step);
        sources_.push_back(slot);
        arrived_.push_back(step);
      }
    }
    reduced_.push_back(builder_.reduce(sources_, target, arrived_));
    return reduced_.back();
  }

  StepId reduced(int64_t k) const { return reduced_[static_cast<size_t>(k)]; }

 private:
  ScheduleBuilder& builder_;
  const Place& place_;
  const std::vector<Slice> slices_;
  std::vector<std::vector<StepId>> sent_;   // by owner
  std::vector<std::vector<Region>> slots_;  // by chunk in flight, by rank
  std::vector<StepId> reduced_;
  std::vector<Region> sources_;
  std::vector<StepId> arrived_;
};

// Receives all ranks' tensors, and adds them to `target`: `own`, or apart from it.
void reduce_whole(ScheduleBuilder& builder, const Place& place, Region own, Region target,
                  std::vector<StepId> after) {
  std::vector<Region> sources(static_cast<size_t>(place.size), own);
  for (int d = 1; d < place.size; ++d) {
    const int rank = (place.rank - d + place.size) % place.size;
    Region& source = sources[static_cast<size_t>(rank)];
    source = builder.scratch(own.bytes);
    after.push_back(builder.receive(rank, source));
  }
  builder.reduce(sources, target, after);
}

void all_reduce_exchange(ScheduleBuilder& builder, const Place& place, int64_t bytes) {
  const Region whole = kOutput.region({0, bytes});
  std::vector<StepId> sent;  // before the result takes the contribution's place
  for (int d = 1; d < place.size; ++d) {
    sent.push_back(builder.send((place.rank + d) % place.size, whole));
  }
  reduce_whole(builder, place, whole, whole, std::move(sent));
}

void all_reduce_chunked(ScheduleBuilder& builder, const Place& place, int64_t count,
                        int64_t element) {
  SliceReduction reduction(builder, place, slices_of(place, kOutput, count, element));
  reduction.send_contributions();
  const int window = std::clamp(place.size - 1, 1, kWindow);
  // Lanes of their own: the first results go out while the last contributions still do.
  std::vector<Lane> lanes(static_cast<size_t>(window));
  const Slice& own = reduction.own();
  for (int64_t k = 0; k < own.chunks.count(); ++k) {
    const StepId reduced = reduction.reduce(k, own.region(k));
    for (int d = 1; d < place.size; ++d) {
      lanes[static_cast<size_t>((d - 1) % window)].add(
          builder, builder.send((place.rank + d) % place.size, own.region(k), {reduced}));
    }
  }
  for (int d = 1; d < place.size; ++d) {
    const int owner = (place.rank - d + place.size) % place.size;
    const Slice& slice = reduction.slice(owner);
    for (int64_t k = 0; k < slice.chunks.count(); ++k) {
      // It comes to where the own contribution lies. The owner cannot have sent it before it had
      // that, but the send may not have been reported done.
      builder.receive(owner, slice.region(k), {reduction.sent(owner, k)});
    }
  }
}

void reduce_chunked(ScheduleBuilder& builder, const Place& place, int64_t count, int64_t element,
                    int root) {
  SliceReduction reduction(builder, place, slices_of(place, kInput, count, element));
  reduction.send_contributions();
  const Slice& own = reduction.own();
  const auto result = [](const Slice& slice, int64_t k) {
    Region region = slice.region(k);
    region.space = Space::kOutput;
    return region;
  };
  if (place.rank == root) {
    for (int64_t k = 0; k < own.chunks.count(); ++k) reduction.reduce(k, result(own, k));
    for (int d = 1; d < place.size; ++d) {
      const int owner = (place.rank - d + place.size) % place.size;
      const Slice& slice = reduction.slice(owner);
      for (int64_t k = 0; k < slice.chunks.count(); ++k) {
        // The output may be the input.
        builder.receive(owner, result(slice, k), {reduction.sent(owner, k)});
      }
    }
    return;
  }
  Slots results(kChunksInFlight);
  for (int64_t k = 0; k < own.chunks.count(); ++k) {
    Slots::Slot& slot = results.take(builder, own.chunks.at(k).bytes);
    const StepId reduced = reduction.reduce(k, slot.region);
    if (slot.user) builder.add_dependency(reduced, *slot.user);
    slot.user = builder.send(root, slot.region, {reduced});
  }
}

}  // namespace

int64_t reduce_chunk_bytes(int group_size) {
  const int64_t share = (1 << 20) / std::max(1, group_size - 1);
  return std::clamp<int64_t>(share / 64 * 64, 16 << 10, 256 << 10);
}

AllReduceAlgorithm choose_all_reduce(const Place& place, int64_t bytes) {
  return bytes <= place.tuning.small_all_reduce / std::max(1, place.size - 1)
             ? AllReduceAlgorithm::kExchange
             : AllReduceAlgorithm::kReduceScatterAllGather;
}

ReduceAlgorithm choose_reduce(const Place& place, int64_t bytes) {
  return bytes <= place.tuning.small_reduce ? ReduceAlgorithm::kGather
                                            : ReduceAlgorithm::kReduceScatterGather;
}

Schedule plan_all_reduce(const Place& place, int64_t count, const Reduction& reduction) {
  if (auto carried = piggyback_all_reduce(place, count, reduction)) return *std::move(carried);
  if (count > 0 && all_reduces_in_two_levels(place)) {
    return all_reduce_in_two_levels(place, count, reduction);
  }
  ScheduleBuilder builder(place.size);
  const int64_t element = element_size(reduction.dtype);
  if (place.size > 1 && count > 0) {
    switch (choose_all_reduce(place, count * element)) {
      case AllReduceAlgorithm::kExchange:
        all_reduce_exchange(builder, place, count * element);
        break;
      case AllReduceAlgorithm::kReduceScatterAllGather:
        all_reduce_chunked(builder, place, count, element);
        break;
    }
  }
  return std::move(builder).finish({reduction});
}

Schedule plan_reduce(const Place& place, int64_t count, int root, const Reduction& reduction) {
  if (auto carried = piggyback_reduce(place, count, root, reduction)) return *std::move(carried);
  ScheduleBuilder builder(place.size);
  const int64_t element = element_size(reduction.dtype);
  const int64_t bytes = count * element;
  if (count > 0 && place.size == 1) {
    copy_piece(builder, kInput, kOutput, bytes);
  } else if (count > 0) {
    switch (choose_reduce(place, bytes)) {
      case ReduceAlgorithm::kGather:
        if (place.rank != root) {
          builder.send(root, kInput.region({0, bytes}));
        } else {
          reduce_whole(builder, place, kInput.region({0, bytes}), kOutput.region({0, bytes}), {});
        }
        break;
      case ReduceAlgorithm::kReduceScatterGather:
        reduce_chunked(builder, place, count, element, root);
        break;
    }
  }
  return std::move(builder).finish({reduction});
}

Schedule plan_reduce_scatter(const Place& place, std::span<const Piece> pieces, const Piece& own,
                             const Reduction& reduction) {
  if (auto carried = piggyback_reduce_scatter(place, pieces, own, reduction)) {
    return *std::move(carried);
  }
  if (reduce_scatters_in_two_levels(place)) {
    return reduce_scatter_in_two_levels(place, pieces, own, reduction);
  }
  ScheduleBuilder builder(place.size);
  const int64_t element = element_size(reduction.dtype);
  if (place.size == 1) {
    copy_piece(builder, kInput, kOutput, own.layout.bytes());
    return std::move(builder).finish({reduction});
  }
  std::vector<Slice> slices;
  for (int rank = 0; rank < place.size; ++rank) {
    const Piece& piece = pieces[static_cast<size_t>(rank)];
    slices.push_back({{Space::kInput, rank, 0},
                      piece.layout,
                      Messages(piece.layout.bytes(), piece.cut, place.tuning, most_messages(place),
                               chunk_bytes(place), element)});
  }
  SliceReduction reducing(builder, place, std::move(slices));
  reducing.send_contributions();
  Slots results(kChunksInFlight);
  const Slice& mine = reducing.own();
  for (int64_t k = 0; k < mine.chunks.count(); ++k) {
    const Region target = kOutput.region(mine.chunks.at(k));
    if (own.layout.is_contiguous(target.offset, target.bytes)) {
      reducing.reduce(k, target);
      continue;
    }
    Slots::Slot& slot = results.take(builder, target.bytes);
    const StepId reduced = reducing.reduce(k, slot.region);
    if (slot.user) builder.add_dependency(reduced, *slot.user);
    slot.user = builder.copy(slot.region, target, {reduced});
  }
  return std::move(builder).finish({reduction});
}

}  // namespace meshrun::ucx
