#include "parallel/comm/ucx/engine/planning/piggyback.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>
#include <vector>

#include "parallel/comm/ucx/engine/planning/messages.h"
#include "parallel/comm/ucx/engine/planning/two_levels.h"

namespace meshrun::ucx {
namespace {

// Most bytes of all ranks together: no more can go in messages of kMostPayload. Spares long tensors
// the count below.
constexpr int64_t kMostOfAll = 4 * kMostPayload;

// A builder whose headers carry `bytes` of each rank; absent: they cannot.
std::optional<ScheduleBuilder> builder_for(const Place& place, std::span<const int64_t> bytes,
                                           std::vector<Region> contribution) {
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  if (!place.headers_carry || place.size < 2 || all == 0 || all > kMostOfAll) return {};
  ScheduleBuilder builder(place.size);
  const Piggyback& piggyback = builder.piggyback(bytes, std::move(contribution));
  const int rounds = std::bit_width(static_cast<unsigned>(place.size - 1));
  for (int round = 0; round < rounds; ++round) {
    for (int sender = 0; sender < place.size; ++sender) {
      if (piggyback.bytes_sent_by(sender, round) > kMostPayload) return {};
    }
  }
  return builder;
}

std::vector<int64_t> of_each(const Place& place, int64_t bytes) {
  return std::vector<int64_t>(static_cast<size_t>(place.size), bytes);
}
std::vector<int64_t> of_root(const Place& place, int root, int64_t bytes) {
  std::vector<int64_t> result(static_cast<size_t>(place.size));
  result[static_cast<size_t>(root)] = bytes;
  return result;
}
std::vector<Region> all_inputs(std::span<const int64_t> bytes) {
  std::vector<Region> regions;
  for (size_t piece = 0; piece < bytes.size(); ++piece) {
    regions.push_back(input(static_cast<int>(piece)).region({0, bytes[piece]}));
  }
  return regions;
}

// Adds bytes [offset, offset + to.bytes) of all contributions in rank order.
StepId add_all(ScheduleBuilder& builder, const Place& place, int64_t offset, Region to) {
  std::vector<Region> sources;
  for (int rank = 0; rank < place.size; ++rank) {
    sources.push_back(builder.slot(rank, offset, to.bytes));
  }
  return builder.reduce(sources, to, {});
}

// Adds those of each host in rank order, and what that makes in the order of the hosts.
StepId add_by_hosts(ScheduleBuilder& builder, const Place& place, int64_t offset, Region to,
                    const Reduction& reduction) {
  const int64_t partial_bytes =
      to.bytes / element_size(reduction.dtype) * element_size(reduction.partial());
  std::vector<Region> partials;
  std::vector<StepId> added;
  for (int host = 0; host < place.hosts->count(); ++host) {
    std::vector<Region> sources;
    for (const int rank : place.hosts->ranks(host)) {
      sources.push_back(builder.slot(rank, offset, to.bytes));
    }
    partials.push_back(builder.scratch(partial_bytes));
    added.push_back(builder.reduce(sources, partials.back(), {}, /*reduction=*/0));
  }
  return builder.reduce(partials, to, added, /*reduction=*/1);
}

// As the group's all_reduce and reduce_scatter add; `by_hosts`: in two levels.
Schedule finish_sum(ScheduleBuilder&& builder, const Place& place, bool by_hosts, int64_t offset,
                    Region to, const Layout& layout, const Reduction& reduction) {
  const bool is_direct = layout.is_contiguous(0, to.bytes);
  const Region sum = is_direct ? to : builder.scratch(to.bytes);
  if (to.bytes > 0) {
    const StepId added = by_hosts ? add_by_hosts(builder, place, offset, sum, reduction)
                                  : add_all(builder, place, offset, sum);
    if (!is_direct) builder.copy(sum, to, {added});
  }
  if (!by_hosts) return std::move(builder).finish({reduction});
  return std::move(builder).finish({reduction.at(Level::kFirst), reduction.at(Level::kSecond)});
}

void copy_from_slot(ScheduleBuilder& builder, int rank, int piece, int64_t bytes) {
  if (bytes > 0) builder.copy(builder.slot(rank), output(piece).region({0, bytes}));
}

}  // namespace

std::optional<Schedule> piggyback_broadcast(const Place& place, const Piece& tensor, int root) {
  const int64_t bytes = tensor.layout.bytes();
  std::vector<Region> contribution;
  if (place.rank == root) contribution = {kInput.region({0, bytes})};
  auto builder = builder_for(place, of_root(place, root, bytes), std::move(contribution));
  if (!builder) return {};
  if (place.rank != root) copy_from_slot(*builder, root, 0, bytes);
  return std::move(*builder).finish();
}

std::optional<Schedule> piggyback_all_reduce(const Place& place, int64_t count,
                                             const Reduction& reduction) {
  const int64_t bytes = count * element_size(reduction.dtype);
  const Region tensor = kOutput.region({0, bytes});
  auto builder = builder_for(place, of_each(place, bytes), {tensor});
  if (!builder) return {};
  return finish_sum(*std::move(builder), place, all_reduces_in_two_levels(place), 0, tensor,
                    {1, bytes, bytes}, reduction);
}

std::optional<Schedule> piggyback_reduce(const Place& place, int64_t count, int root,
                                         const Reduction& reduction) {
  const int64_t bytes = count * element_size(reduction.dtype);
  auto builder = builder_for(place, of_each(place, bytes), {kInput.region({0, bytes})});
  if (!builder) return {};
  if (place.rank == root) add_all(*builder, place, 0, kOutput.region({0, bytes}));
  return std::move(*builder).finish({reduction});
}

std::optional<Schedule> piggyback_all_gather(const Place& place, const Piece& own,
                                             std::span<const Piece> pieces, bool in_place) {
  const std::vector<int64_t> bytes = bytes_of(pieces);
  auto builder = builder_for(place, bytes, {kInput.region({0, own.layout.bytes()})});
  if (!builder) return {};
  for (int rank = 0; rank < place.size; ++rank) {
    const int64_t its = bytes[static_cast<size_t>(rank)];
    if (rank != place.rank) {
      copy_from_slot(*builder, rank, rank, its);
    } else if (!in_place && its > 0) {
      builder->copy(kInput.region({0, its}), output(rank).region({0, its}));
    }
  }
  return std::move(*builder).finish();
}

std::optional<Schedule> piggyback_gather(const Place& place, std::span<const int64_t> piece_bytes,
                                         int root) {
  const auto own = kInput.region({0, piece_bytes[static_cast<size_t>(place.rank)]});
  auto builder = builder_for(place, piece_bytes, {own});
  if (!builder) return {};
  for (int rank = 0; rank < place.size && place.rank == root; ++rank) {
    if (rank != root) {
      copy_from_slot(*builder, rank, rank, piece_bytes[static_cast<size_t>(rank)]);
    } else if (own.bytes > 0) {
      builder->copy(own, output(rank).region({0, own.bytes}));
    }
  }
  return std::move(*builder).finish();
}

std::optional<Schedule> piggyback_scatter(const Place& place, std::span<const int64_t> piece_bytes,
                                          int root) {
  const bool is_root = place.rank == root;
  const int64_t all = std::accumulate(piece_bytes.begin(), piece_bytes.end(), int64_t{0});
  auto builder = builder_for(place, of_root(place, root, all),
                             is_root ? all_inputs(piece_bytes) : std::vector<Region>());
  if (!builder) return {};
  const int64_t own = piece_bytes[static_cast<size_t>(place.rank)];
  const int64_t before =
      std::accumulate(piece_bytes.begin(), piece_bytes.begin() + place.rank, int64_t{0});
  if (own > 0) {
    builder->copy(is_root ? input(root).region({0, own}) : builder->slot(root, before, own),
                  kOutput.region({0, own}));
  }
  return std::move(*builder).finish();
}

std::optional<Schedule> piggyback_reduce_scatter(const Place& place, std::span<const Piece> pieces,
                                                 const Piece& own, const Reduction& reduction) {
  const std::vector<int64_t> bytes = bytes_of(pieces);
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  auto builder = builder_for(place, of_each(place, all), all_inputs(bytes));
  if (!builder) return {};
  const int64_t before = std::accumulate(bytes.begin(), bytes.begin() + place.rank, int64_t{0});
  return finish_sum(*std::move(builder), place, reduce_scatters_in_two_levels(place), before,
                    kOutput.region({0, own.layout.bytes()}), own.layout, reduction);
}

}  // namespace meshrun::ucx
