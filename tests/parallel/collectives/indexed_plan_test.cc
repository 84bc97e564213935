#include "parallel/collectives/plans/indexed_plan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshrun {
namespace {

using Lists = std::vector<std::vector<int64_t>>;

IndexedPlan plan(const Lists& indices, const Lists& sizes, int64_t extent, int rank) {
  const std::vector<std::span<const int64_t>> spans(indices.begin(), indices.end());
  return plan_indexed_exchange(spans, sizes, extent, rank, static_cast<int>(sizes.size()));
}

const Lists kSizes = {{1, 2, 0}, {2, 3, 1}, {0, 0, 0}};

TEST(IndexedPlanTest, KeepsOnesOwnSlicesOutOfTheBuffer) {
  const IndexedPlan it = plan({{3, 0}, {1, 1, 3}, {1}}, kSizes, 4, 1);
  EXPECT_EQ(it.problem, "");
  EXPECT_EQ(it.remote, (std::vector<int64_t>{3, 0, 1}));
  EXPECT_EQ(it.own, (std::vector<int64_t>{1, 1, 3}));
  EXPECT_EQ(it.send_sizes, (std::vector<int64_t>{2, 3, 1}));
  EXPECT_EQ(it.receive_sizes, (std::vector<int64_t>{2, 3, 0}));
}

TEST(IndexedPlanTest, InvertsTheSendListInItsOrder) {
  const IndexedPlan it = plan({{3, 0}, {1, 1, 3}, {1}}, kSizes, 4, 1);
  EXPECT_EQ(it.offsets, (std::vector<int64_t>{0, 1, 4, 4, 6}));
  // The buffer holds 3 positions; 3, 4, 5 are one's own slices. Slice 1 goes to oneself twice
  // before it goes to rank 2.
  EXPECT_EQ(it.positions, (std::vector<int64_t>{1, 3, 4, 2, 0, 5}));
}

TEST(IndexedPlanTest, TakesAnEmptyTensorAndEmptyLists) {
  const IndexedPlan it = plan({{}, {}}, {{0, 0}, {3, 0}}, 0, 0);
  EXPECT_EQ(it.problem, "");
  EXPECT_EQ(it.offsets, std::vector<int64_t>{0});
  EXPECT_EQ(it.receive_sizes, (std::vector<int64_t>{0, 3}));
}

TEST(IndexedPlanTest, SaysWhatIsWrong) {
  const auto problem = [](const Lists& indices, const Lists& sizes) {
    return plan(indices, sizes, 4, 1).problem;
  };
  const auto expect = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "'";
  };
  expect(problem({{0}, {}}, kSizes), "indices has 2 entries in a group of 3 ranks");
  expect(problem({{3}, {1, 1, 3}, {1}}, kSizes),
         "indices[0] has 1 entries on rank 1, and sizes[1][0] is 2");
  expect(problem({{3, 4}, {1, 1, 3}, {1}}, kSizes), "indices[0][1] is 4 on rank 1");
  expect(problem({{3, -1}, {1, 1, 3}, {1}}, kSizes), "indices[0][1] is -1");
  expect(problem({{}, {}, {}}, {{0, 0, 0}, {0, 0}, {0, 0, 0}}), "sizes[1] has 2 entries");
  expect(problem({{}, {}, {}}, {{0, 0, 0}, {0, 0, 0}, {0, -7, 0}}), "sizes[2][1] is -7");
  const std::vector<std::span<const int64_t>> none(2);
  expect(plan_indexed_exchange(none, kSizes, 4, 1, 2).problem, "sizes has 3 rows");
}

TEST(IndexedPlanTest, TheDigestTellsTablesApart) {
  const uint64_t digest = plan({{}, {}}, {{0, 0}, {0, 1}}, 4, 0).table_digest;
  EXPECT_EQ(digest, plan({{}, {}}, {{0, 0}, {0, 1}}, 9, 0).table_digest);
  EXPECT_NE(digest, plan({{}, {}}, {{0, 0}, {1, 0}}, 4, 0).table_digest);
}

TEST(IndexedPlanTest, KeepsWhatEachRankSendsInAll) {
  EXPECT_EQ(plan({{}, {}}, {{0, 0}, {2, 5}}, 4, 0).table_rows, (std::vector<int64_t>{0, 7}));
}

}  // namespace
}  // namespace meshrun
