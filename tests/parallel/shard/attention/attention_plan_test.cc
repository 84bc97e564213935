#include "parallel/shard/attention/attention_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace meshrun {
namespace {

using Sizes = std::vector<int64_t>;

int64_t offset_of(const Sizes& sizes, int rank) {
  return std::accumulate(sizes.begin(), sizes.begin() + rank, int64_t{0});
}

TEST(CutAttentionTest, CoversTheAllowedPairsOnce) {
  for (int64_t query_offset = 0; query_offset < 6; ++query_offset) {
    for (int64_t key_offset = 0; key_offset < 6; ++key_offset) {
      for (int64_t queries = 0; queries < 5; ++queries) {
        for (int64_t keys = 0; keys < 5; ++keys) {
          for (const bool is_causal : {false, true}) {
            std::vector<int> covered(static_cast<size_t>(queries * keys), 0);
            const auto tiles = cut_attention(query_offset, queries, key_offset, keys, is_causal);
            EXPECT_LE(tiles.size(), 2U);
            for (const AttentionTile& tile : tiles) {
              EXPECT_GT(tile.query_size * tile.key_size, 0);
              for (int64_t i = 0; i < tile.query_size; ++i) {
                for (int64_t j = 0; j < tile.key_size; ++j) {
                  if (tile.is_causal && j > i) continue;
                  ++covered[static_cast<size_t>((tile.query_begin + i) * keys + tile.key_begin +
                                                j)];
                }
              }
            }
            for (int64_t i = 0; i < queries; ++i) {
              for (int64_t j = 0; j < keys; ++j) {
                const bool allowed = !is_causal || key_offset + j <= query_offset + i;
                EXPECT_EQ(covered[static_cast<size_t>(i * keys + j)], allowed ? 1 : 0);
              }
            }
          }
        }
      }
    }
  }
}

Sizes random_sizes(int world, std::mt19937_64& random) {
  Sizes sizes(static_cast<size_t>(world));
  for (int64_t& size : sizes) size = random() % 3 == 0 ? 0 : static_cast<int64_t>(random() % 5);
  return sizes;
}

// Plays both passes on all ranks.
TEST(RingPlanTest, EveryPairMeetsAndEveryGradientComesHome) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 500; ++trial) {
    const int world = 1 + static_cast<int>(random() % 5);
    const Sizes queries = random_sizes(world, random);
    const Sizes keys = random_sizes(world, random);
    const bool is_causal = random() % 2 == 0;
    const RingPlan plan(queries, keys, is_causal);

    std::vector<std::vector<bool>> met(static_cast<size_t>(world),
                                       std::vector<bool>(static_cast<size_t>(world), false));
    std::vector<int> held(static_cast<size_t>(world));
    std::iota(held.begin(), held.end(), 0);
    for (int step = 0; step < plan.num_steps(); ++step) {
      std::vector<int> next(held.size(), -1);
      for (int rank = 0; rank < world; ++rank) {
        const auto r = static_cast<size_t>(rank);
        const int block = plan.block_at(rank, step);
        EXPECT_EQ(block, held[r]);
        if (!plan.tiles_at(rank, step).empty()) met[r][static_cast<size_t>(held[r])] = true;
        const int sent = plan.keys_sent(rank, step);
        if (sent < 0) continue;
        EXPECT_EQ(sent, held[r]);
        EXPECT_LT(step + 1, plan.num_steps());
        next[static_cast<size_t>((rank + 1) % world)] = sent;
      }
      held = next;
    }
    for (int rank = 0; rank < world; ++rank) {
      for (int block = 0; block < world; ++block) {
        const auto r = static_cast<size_t>(rank);
        const auto b = static_cast<size_t>(block);
        EXPECT_EQ(met[r][b], !cut_attention(offset_of(queries, rank), queries[r],
                                            offset_of(keys, block), keys[b], is_causal)
                                  .empty());
      }
    }

    // Gradients: each block's parts arrive at home once, all of them.
    Sizes home(static_cast<size_t>(world), -1);
    Sizes parts(static_cast<size_t>(world), 0);  // of the block at each rank, so far
    const int exchanges = plan.num_backward_exchanges();
    for (int step = 0; step < std::max(plan.num_steps(), exchanges); ++step) {
      std::vector<std::pair<int, int64_t>> arriving(static_cast<size_t>(world), {-1, 0});
      for (int rank = 0; rank < world; ++rank) {
        const RingPlan::Sent sent = plan.gradients_sent(rank, step);
        if (sent.block < 0) continue;
        ASSERT_LT(step, exchanges);
        EXPECT_NE(sent.to, rank);
        const int64_t carried = parts[static_cast<size_t>(rank)];
        if (sent.to == sent.block) {
          EXPECT_EQ(home[static_cast<size_t>(sent.block)], -1);
          home[static_cast<size_t>(sent.block)] = carried;
        } else {
          EXPECT_EQ(sent.to, (rank + 1) % world);
          arriving[static_cast<size_t>(sent.to)] = {sent.block, carried};
        }
      }
      for (int rank = 0; rank < world; ++rank) {
        const auto r = static_cast<size_t>(rank);
        const int block = plan.block_at(rank, step);
        parts[r] = block >= 0 && !plan.tiles_at(rank, step).empty() ? 1 : 0;
        if (arriving[r].first >= 0) {
          EXPECT_EQ(arriving[r].first, block);
          parts[r] += arriving[r].second;
        }
        if (step == 0 && plan.gradients_sent(rank, 1).block < 0) home[r] = parts[r];
      }
    }
    for (int block = 0; block < world; ++block) {
      int64_t expected = 0;
      for (int rank = 0; rank < world; ++rank) {
        expected += met[static_cast<size_t>(rank)][static_cast<size_t>(block)] ? 1 : 0;
      }
      EXPECT_EQ(home[static_cast<size_t>(block)], expected);
    }
  }
}

TEST(RingPlanTest, CausalBlocksEndAtTheLastRank) {
  const RingPlan plan({4, 4, 4, 4}, {4, 4, 4, 4}, true);
  EXPECT_EQ(plan.num_steps(), 4);
  EXPECT_EQ(plan.keys_sent(0, 0), 0);
  EXPECT_EQ(plan.keys_sent(3, 0), -1);
  EXPECT_EQ(plan.keys_sent(3, 1), -1);
  EXPECT_EQ(plan.block_at(0, 1), -1);
  EXPECT_EQ(plan.block_at(3, 2), 1);
}

}  // namespace
}  // namespace meshrun
