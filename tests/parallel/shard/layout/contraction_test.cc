#include "parallel/shard/layout/contraction.h"

#include <gtest/gtest.h>

#include <vector>

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

constexpr int kRow = 0;
constexpr int kColumn = 1;
constexpr int kInner = 2;

ShardLayout layout(const Lengths& mesh, const Placements& placements, const Lengths& shape) {
  return ShardLayout::split(mesh, placements, shape);
}

// A matrix product of two operands.
ContractionLayout product(const Lengths& mesh, const ShardLayout& a, const ShardLayout& b) {
  return contraction(
      mesh, {{&a, a.global_shape(), {kRow, kInner}}, {&b, b.global_shape(), {kInner, kColumn}}},
      {kRow, kColumn});
}

TEST(ContractionTest, RowsStayWhereTheyAreAndTheGradientOfTheWholeOperandIsASum) {
  const ShardLayout a = layout({4}, {Shard(0)}, {9, 5});
  const ShardLayout b = layout({4}, {Replicate()}, {5, 3});
  const ContractionLayout made = product({4}, a, b);
  EXPECT_EQ(made.factors[0], a);
  EXPECT_EQ(made.factors[1], b);
  EXPECT_EQ(made.result, layout({4}, {Shard(0)}, {9, 3}));
  EXPECT_EQ(made.gradients[0], a);
  EXPECT_EQ(made.gradients[1].placements(), Placements{Partial()});
}

TEST(ContractionTest, ACutContractedDimensionMakesSummands) {
  const ShardLayout a = layout({4}, {Shard(1)}, {9, 5});
  const ShardLayout b = layout({4}, {Shard(0)}, {5, 3});
  const ContractionLayout made = product({4}, a, b);
  EXPECT_EQ(made.factors[0], a);
  EXPECT_EQ(made.factors[1], b);
  EXPECT_EQ(made.result.placements(), Placements{Partial()});
  EXPECT_EQ(made.gradients[0], a);
}

TEST(ContractionTest, WhereTwoCutsMeetOnOneAxisTheSmallerOperandMoves) {
  const ShardLayout a = layout({4}, {Shard(0)}, {9, 5});
  const ShardLayout b = layout({4}, {Shard(1)}, {5, 30});
  const ContractionLayout made = product({4}, a, b);
  EXPECT_EQ(made.factors[0].placements(), Placements{Replicate()});
  EXPECT_EQ(made.factors[1], b);
  EXPECT_EQ(made.result, layout({4}, {Shard(1)}, {9, 30}));
}

TEST(ContractionTest, TwoAxesCutRowsAndColumns) {
  const ShardLayout a = layout({2, 2}, {Shard(0), Replicate()}, {9, 5});
  const ShardLayout b = layout({2, 2}, {Replicate(), Shard(1)}, {5, 3});
  const ContractionLayout made = product({2, 2}, a, b);
  EXPECT_EQ(made.factors[0], a);
  EXPECT_EQ(made.factors[1], b);
  EXPECT_EQ(made.result, layout({2, 2}, {Shard(0), Shard(1)}, {9, 3}));
  EXPECT_EQ(made.gradients[0].placements(), (Placements{Shard(0), Partial()}));
  EXPECT_EQ(made.gradients[1].placements(), (Placements{Partial(), Shard(1)}));
}

TEST(ContractionTest, OneFactorMayStayPartialAndASummandMayNot) {
  const ShardLayout a = layout({4}, {Partial()}, {9, 5});
  const ShardLayout b = layout({4}, {Partial()}, {5, 3});
  const ContractionLayout made = product({4}, a, b);
  EXPECT_EQ(made.factors[0], a);
  EXPECT_EQ(made.gradients[0].placements(), Placements{Replicate()});
  EXPECT_EQ(made.factors[1].placements(), Placements{Replicate()});
  EXPECT_EQ(made.gradients[1].placements(), Placements{Partial()});
  EXPECT_EQ(made.result.placements(), Placements{Partial()});

  const ShardLayout bias = layout({4}, {Partial()}, {5});
  const ContractionLayout added =
      contraction({4}, {{nullptr, {9, 5}, {kRow, kInner}}, {&bias, {5}, {kInner}, true}}, {kRow});
  EXPECT_EQ(added.factors[1].placements(), Placements{Replicate()});
}

TEST(ContractionTest, LabelsThatStayWholeAndExtentsThatBroadcastAreNotCut) {
  const ShardLayout a = layout({2}, {Shard(0)}, {4, 5});
  const ContractionLayout whole =
      contraction({2}, {{&a, {4, 5}, {kRow, kInner}}}, {kRow, kInner}, {kRow});
  EXPECT_EQ(whole.result.placements(), Placements{Replicate()});
  const ShardLayout one = layout({2}, {Shard(0)}, {1, 5});
  const ContractionLayout broadcast = contraction(
      {2}, {{&one, {1, 5}, {kBroadcastLabel, kInner}}, {nullptr, {4, 5}, {kRow, kInner}}},
      {kRow, kInner});
  EXPECT_EQ(broadcast.factors[0].placements(), Placements{Replicate()});
}

TEST(ContractionTest, ExtentsThatDifferAreAnError) {
  const ShardLayout a = layout({2}, {Shard(0)}, {4, 5});
  const ShardLayout b = layout({2}, {Shard(0)}, {6, 3});
  EXPECT_THROW(product({2}, a, b), ShardLayoutError);
}

}  // namespace
}  // namespace meshrun
