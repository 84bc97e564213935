#include "parallel/shard/attention/attention_plan.h"

#include <algorithm>
#include <utility>

#include "parallel/base/extents.h"

namespace meshrun {
namespace {}  // namespace

std::vector<AttentionTile> cut_attention(int64_t query_offset, int64_t query_size,
                                         int64_t key_offset, int64_t key_size, bool is_causal) {
  if (query_size == 0 || key_size == 0) return {};
  if (!is_causal) return {{0, query_size, 0, key_size, false}};
  std::vector<AttentionTile> tiles;
  // Keys before the first query are seen by all queries.
  const int64_t before = std::clamp<int64_t>(query_offset - key_offset, 0, key_size);
  if (before > 0) tiles.push_back({0, query_size, 0, before, false});
  // A query sees the remaining keys up to its own position: a triangle that begins at the first
  // query that sees any of them.
  const int64_t first = std::max<int64_t>(key_offset - query_offset, 0);
  if (before < key_size && first < query_size) {
    const int64_t queries = query_size - first;
    tiles.push_back({first, queries, before, std::min(key_size - before, queries), true});
  }
  return tiles;
}

RingPlan::RingPlan(std::vector<int64_t> query_sizes, std::vector<int64_t> key_sizes, bool is_causal,
                   int64_t first_query)
    : query_sizes_(std::move(query_sizes)),
      key_sizes_(std::move(key_sizes)),
      query_offsets_(extent_offsets(query_sizes_, first_query)),
      key_offsets_(extent_offsets(key_sizes_)),
      is_causal_(is_causal),
      reach_(key_sizes_.size(), 0) {
  for (int block = 0; block < world(); ++block) {
    int& reach = reach_[static_cast<size_t>(block)];
    reach = world() - 1;
    while (reach > 0 && tiles_at((block + reach) % world(), reach).empty()) --reach;
    num_steps_ = std::max(num_steps_, reach + 1);
  }
}

int RingPlan::block_of(int rank, int step) const {
  return ((rank - step) % world() + world()) % world();
}

int RingPlan::block_at(int rank, int step) const {
  const int block = block_of(rank, step);
  return step < world() && reach_[static_cast<size_t>(block)] >= step ? block : -1;
}

std::vector<AttentionTile> RingPlan::tiles_at(int rank, int step) const {
  const int block = block_at(rank, step);
  if (block < 0) return {};
  const auto r = static_cast<size_t>(rank);
  const auto b = static_cast<size_t>(block);
  return cut_attention(query_offsets_[r], query_sizes_[r], key_offsets_[b], key_sizes_[b],
                       is_causal_);
}

int RingPlan::keys_sent(int rank, int step) const {
  const int block = block_at(rank, step);
  return block >= 0 && reach_[static_cast<size_t>(block)] > step ? block : -1;
}

RingPlan::Sent RingPlan::gradients_sent(int rank, int step) const {
  const int block = step > 0 ? block_at(rank, step - 1) : -1;
  if (block < 0) return {};
  const int reach = reach_[static_cast<size_t>(block)];
  if (reach == 0) return {};  // it is at home
  return {block, reach > step - 1 ? (rank + 1) % world() : block};
}

}  // namespace meshrun
