#include "parallel/fft/fft_geometry.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

namespace meshrun::fft {
namespace {

using Sizes = std::vector<int64_t>;

std::vector<int64_t> offsets_of(const Sizes& sizes) {
  std::vector<int64_t> offsets(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), offsets.begin() + 1);
  return offsets;
}

// The half rows that a rank computes, one by one.
std::vector<int64_t> list(const std::vector<SplitRange>& blocks) {
  std::vector<int64_t> rows;
  for (const SplitRange& block : blocks) {
    for (int64_t row = block.begin; row < block.end; ++row) rows.push_back(row);
  }
  return rows;
}

void expect_right(int64_t height, const Sizes& held, bool shared) {
  const HalfRows rows(Layout::kCanonical, height, held, shared);
  const auto offsets = offsets_of(held);
  const int world = rows.world();
  // Every half row of which a row is held is computed once.
  std::map<int64_t, int> computer;
  for (int rank = 0; rank < world; ++rank) {
    const auto own = list(rows.computed(rank));
    EXPECT_EQ(rows.num_computed()[static_cast<size_t>(rank)], static_cast<int64_t>(own.size()));
    EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
    for (const int64_t half : own) {
      EXPECT_TRUE(computer.emplace(half, rank).second || rows.is_shared());
    }
  }
  EXPECT_EQ(rows.is_shared(), shared && world == 2);
  const int64_t total = offsets.back();
  for (int64_t half = 0; half <= height / 2; ++half) {
    const bool is_held = half < total || (half > 0 && height - half < total);
    EXPECT_EQ(computer.count(half), is_held ? 1u : 0u) << half;
  }
  // Every row of the transform that is held comes from the half row that it is or mirrors.
  std::map<int64_t, int> seen;
  for (int from = 0; from < world; ++from) {
    const auto own = list(rows.computed(from));
    for (int to = 0; to < world; ++to) {
      int64_t count = 0;
      for (const RowRun& run : rows.runs(from, to)) {
        for (int64_t i = 0; i < run.count; ++i) {
          const int64_t row = offsets[static_cast<size_t>(to)] + run.row_begin + i;
          const int64_t number = run.half_begin + (run.mirrored ? -i : i);
          const int64_t half = own.at(static_cast<size_t>(number));
          EXPECT_EQ(row, run.mirrored ? height - half : half);
          EXPECT_LT(run.row_begin + i, held[static_cast<size_t>(to)]);
          ++seen[row];
          ++count;
        }
      }
      EXPECT_EQ(rows.num_rows(from, to), count);
    }
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), std::min(height, total));
  for (const auto& [row, times] : seen) EXPECT_EQ(times, 1) << row;
  EXPECT_EQ(rows.is_complete(), total >= height && !rows.is_shared());
  // In rank order, all that are computed.
  const Sizes& computed = rows.num_computed();
  EXPECT_EQ(static_cast<int64_t>(list(rows.in_rank_order()).size()),
            std::accumulate(computed.begin(), computed.end(), int64_t{0}));
}

TEST(HalfRowsTest, EveryRowHeldComesFromOneComputedHalfRow) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 400; ++trial) {
    const int64_t height = 1 + static_cast<int64_t>(random() % 40);
    Sizes held(1 + random() % 5);
    int64_t left = height;
    for (size_t rank = 0; rank + 1 < held.size(); ++rank) {
      held[rank] = left > 0 ? static_cast<int64_t>(random() % static_cast<unsigned>(left + 1)) : 0;
      left -= held[rank];
    }
    held.back() = left;
    // More rows than the transform has, or fewer.
    if (trial % 3 == 1) held.back() += 3;
    if (trial % 3 == 2) held.back() /= 2;
    SCOPED_TRACE("height " + std::to_string(height) + ", trial " + std::to_string(trial));
    for (const bool shared : {false, true}) expect_right(height, held, shared);
  }
}

TEST(HalfRowsTest, WorkIsDealtEvenlyAndTheWireStaysAtItsBound) {
  const HalfRows rows(Layout::kCanonical, 720, {180, 180, 180, 180});
  EXPECT_EQ(rows.num_computed(), (Sizes{91, 91, 90, 89}));
  int64_t moved = 0;
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      if (from != to) moved += rows.num_rows(from, to);
    }
  }
  // One of the two rows of each pair.
  EXPECT_EQ(moved, 359);
}

TEST(HalfRowsTest, PairedRanksComputeWhatTheyHold) {
  const HalfRows rows(Layout::kPaired, 9, {2, 0, 3});
  EXPECT_EQ(rows.num_computed(), (Sizes{2, 0, 3}));
  EXPECT_TRUE(rows.is_ordered());
  EXPECT_EQ(list(rows.computed(2)), (Sizes{2, 3, 4}));
  // Rows beyond the transform's are computed by nobody.
  EXPECT_EQ(HalfRows(Layout::kPaired, 9, {4, 4}).num_computed(), (Sizes{4, 1}));
}

TEST(HalfRowsTest, KnowsWhichHalfRowsMirrorThemselves) {
  EXPECT_EQ(HalfRows(Layout::kCanonical, 6, {6}).self_mirrored(0), (Sizes{0, 3}));
  EXPECT_EQ(HalfRows(Layout::kCanonical, 7, {7}).self_mirrored(0), (Sizes{0}));
  EXPECT_EQ(HalfRows(Layout::kCanonical, 1, {1}).self_mirrored(0), (Sizes{0}));
  EXPECT_EQ(HalfRows(Layout::kCanonical, 2, {2}).self_mirrored(0), (Sizes{0, 1}));
}

TEST(SizesWithinTest, CutsAtTheExtent) {
  EXPECT_EQ(sizes_within({3, 3, 2}, 5), (Sizes{3, 2, 0}));
  EXPECT_EQ(sizes_within({3, 0, 2}, 9), (Sizes{3, 0, 2}));
}

TEST(NumChunksTest, CutsLargeBatchesOnly) {
  EXPECT_EQ(num_chunks(64, 1 << 20, 2), 1);
  EXPECT_EQ(num_chunks(64, 256 << 20, 2), 4);
  EXPECT_EQ(num_chunks(2, 256 << 20, 2), 2);
  EXPECT_EQ(num_chunks(64, 256 << 20, 1), 1);
}

}  // namespace
}  // namespace meshrun::fft
