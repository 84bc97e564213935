#include "parallel/shard/redistribute/redistribution_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace meshrun {
namespace {

using Extents = std::vector<int64_t>;
using Kind = RedistributionStep::Kind;

std::vector<Kind> kinds_of(const RedistributionPlan& plan) {
  std::vector<Kind> kinds;
  for (const RedistributionStep& step : plan.steps) kinds.push_back(step.kind);
  return kinds;
}

RedistributionPlan plan_of(const Extents& mesh, const Placements& from, const Placements& to,
                           const Extents& shape) {
  return plan_redistribution(ShardLayout::split(mesh, from, shape),
                             ShardLayout::split(mesh, to, shape), Extents(mesh.size()));
}

TEST(RedistributionPlanTest, OneCollectiveMovesOneAxisInPlace) {
  EXPECT_EQ(kinds_of(plan_of({4}, {Shard(0)}, {Replicate()}, {9, 5})),
            std::vector{Kind::kAllGather});
  EXPECT_EQ(kinds_of(plan_of({4}, {Shard(0)}, {Shard(1)}, {9, 5})), std::vector{Kind::kAllToAll});
  EXPECT_EQ(kinds_of(plan_of({4}, {Replicate()}, {Shard(1)}, {9, 5})), std::vector{Kind::kSlice});
  EXPECT_EQ(kinds_of(plan_of({4}, {Partial()}, {Shard(1)}, {9, 5})),
            std::vector{Kind::kReduceScatter});
  EXPECT_EQ(kinds_of(plan_of({4}, {Partial()}, {Replicate()}, {9, 5})),
            std::vector{Kind::kAllReduce});
  EXPECT_EQ(kinds_of(plan_of({2, 3}, {Shard(1), Shard(0)}, {Shard(1), Replicate()}, {9, 5})),
            std::vector{Kind::kAllGather});
}

TEST(RedistributionPlanTest, PiecesOfOtherSizesMoveAlongTheirDimension) {
  const ShardLayout from = ShardLayout::with_cuts({3}, {Shard(0)}, {{{0}, {5, 0, 4}}, {{}, {2}}});
  const ShardLayout to = ShardLayout::with_cuts({3}, {Shard(0)}, {{{0}, {3, 3, 3}}, {{}, {2}}});
  const RedistributionPlan plan = plan_redistribution(from, to, {0});
  ASSERT_EQ(kinds_of(plan), std::vector{Kind::kAllToAll});
  EXPECT_EQ(plan.steps[0].sent_sizes, (Extents{3, 2, 0}));
  EXPECT_EQ(plan.steps[0].received_sizes, (Extents{3, 0, 0}));
  EXPECT_EQ(plan.received_elements(), 0);
  EXPECT_EQ(plan_redistribution(from, to, {1}).received_elements(), 3 * 2);
}

TEST(RedistributionPlanTest, ADimensionCutByAllAxesIsGatheredAtOnce) {
  EXPECT_EQ(kinds_of(plan_of({2, 2}, {Shard(0), Shard(0)}, {Replicate(), Replicate()}, {9})),
            std::vector{Kind::kAllGather});
  EXPECT_EQ(kinds_of(plan_of({2, 2}, {Partial(), Partial()}, {Replicate(), Replicate()}, {9})),
            std::vector{Kind::kAllReduce});
  EXPECT_EQ(kinds_of(plan_of({2, 2}, {Shard(0), Shard(1)}, {Replicate(), Replicate()}, {9, 9})),
            (std::vector{Kind::kAllGather, Kind::kAllGather}));
}

TEST(RedistributionPlanTest, PartsAreKeptBeforeAnythingMoves) {
  EXPECT_EQ(kinds_of(plan_of({2, 2}, {Shard(0), Replicate()}, {Replicate(), Shard(1)}, {9, 9})),
            (std::vector{Kind::kSlice, Kind::kAllGather}));
  EXPECT_EQ(kinds_of(plan_of({2, 2}, {Partial(), Replicate()}, {Replicate(), Shard(1)}, {9, 9})),
            (std::vector{Kind::kSlice, Kind::kAllReduce}));
}

TEST(RedistributionPlanTest, PiecesThatDoNotNestAreExchangedAtOnce) {
  EXPECT_EQ(kinds_of(plan_of({2, 2}, {Shard(0), Shard(1)}, {Shard(1), Shard(0)}, {9, 9})),
            std::vector{Kind::kExchange});
  EXPECT_EQ(kinds_of(plan_of({2, 2}, {Shard(0), Shard(0)}, {Replicate(), Shard(0)}, {9, 9})),
            std::vector{Kind::kExchange});
}

TEST(RedistributionPlanTest, AxesOfOneRankMoveNothing) {
  EXPECT_TRUE(plan_of({1}, {Partial()}, {Shard(0)}, {9}).steps.empty());
  EXPECT_EQ(kinds_of(plan_of({1, 2}, {Shard(0), Shard(0)}, {Replicate(), Replicate()}, {9})),
            std::vector{Kind::kAllGather});
  EXPECT_EQ(kinds_of(plan_of({1, 2}, {Shard(0), Shard(0)}, {Shard(1), Shard(0)}, {9, 2})),
            std::vector<Kind>{});
  EXPECT_EQ(kinds_of(plan_of({2, 1}, {Partial(), Shard(0)}, {Shard(0), Shard(0)}, {4})),
            std::vector{Kind::kReduceScatter});
}

TEST(RedistributionPlanTest, OnlyAReductionOfSumsIsScattered) {
  EXPECT_EQ(kinds_of(plan_of({3}, {Partial(PartialOp::kAvg)}, {Shard(0)}, {9})),
            std::vector{Kind::kReduceScatter});
  EXPECT_EQ(kinds_of(plan_of({3}, {Partial(PartialOp::kMax)}, {Shard(0)}, {9})),
            (std::vector{Kind::kAllReduce, Kind::kSlice}));
}

// Every element of the global tensor, by the ranks' boxes.
int64_t lacking_by_counting(const ShardLayout& from, const ShardLayout& to,
                            const Extents& coordinate) {
  const auto contains = [](const Box& box, const Extents& index) {
    for (size_t d = 0; d < index.size(); ++d) {
      if (index[d] < box.offsets[d] || index[d] >= box.offsets[d] + box.sizes[d]) return false;
    }
    return true;
  };
  int64_t lacking = 0;
  for (const Extents& index : all_coordinates(to.global_shape())) {
    lacking += contains(to.box(coordinate), index) && !contains(from.box(coordinate), index);
  }
  return lacking;
}

class RandomLayouts {
 public:
  explicit RandomLayouts(uint64_t seed) : engine_(seed) {}

  int64_t below(int64_t end) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(end));
  }

  ShardLayout layout(const Extents& mesh, const Extents& shape) {
    Placements placements;
    for (size_t axis = 0; axis < mesh.size(); ++axis) {
      const int64_t dim = below(static_cast<int64_t>(shape.size()) + 1);
      placements.push_back(dim == static_cast<int64_t>(shape.size()) ? Replicate() : Shard(dim));
    }
    const ShardLayout layout = ShardLayout::split(mesh, placements, shape);
    if (below(2) == 0) return layout;
    std::vector<DimCut> cuts = layout.cuts();
    for (size_t dim = 0; dim < cuts.size(); ++dim) {
      if (cuts[dim].axes.empty()) continue;
      const auto pieces = static_cast<int64_t>(cuts[dim].sizes.size());
      cuts[dim].sizes.assign(cuts[dim].sizes.size(), 0);
      for (int64_t i = 0; i < shape[dim]; ++i)
        ++cuts[dim].sizes[static_cast<size_t>(below(pieces))];
    }
    return ShardLayout::with_cuts(mesh, placements, cuts);
  }

 private:
  std::mt19937_64 engine_;
};

TEST(RedistributionPlanTest, ReceivesWhatIsLackingAndNoElementMore) {
  RandomLayouts random(7);
  const std::vector<Extents> meshes = {{4}, {2, 2}, {3, 2}, {1, 2, 2}, {2, 2, 2}};
  for (int draw = 0; draw < 400; ++draw) {
    const Extents& mesh = meshes[static_cast<size_t>(random.below(5))];
    const Extents shape = {1 + random.below(7), random.below(6), 1 + random.below(3)};
    const ShardLayout from = random.layout(mesh, shape);
    const ShardLayout to = random.layout(mesh, shape);
    SCOPED_TRACE(to_string(from.placements()) + " to " + to_string(to.placements()));
    std::set<std::string> structures;
    for (const Extents& rank : all_coordinates(mesh)) {
      const RedistributionPlan plan = plan_redistribution(from, to, rank);
      EXPECT_EQ(plan.received_elements(), lacking_by_counting(from, to, rank));
      EXPECT_EQ(lacking_elements(from, to, rank), lacking_by_counting(from, to, rank));
      std::string structure = plan.words;
      for (const RedistributionStep& step : plan.steps) {
        structure += " " + std::to_string(static_cast<int>(step.kind)) + "/" +
                     std::to_string(step.axis) + "/" + std::to_string(step.is_on_wire);
      }
      structures.insert(structure);
      if (plan.steps.empty()) continue;
      EXPECT_EQ(plan.steps.back().shape, to.box(rank).sizes);
    }
    EXPECT_EQ(structures.size(), 1u) << "ranks take other steps";
  }
}

TEST(RedistributionPlanTest, ADigestTellsPlansApart) {
  const auto digest = [](const Placements& from, const Placements& to) {
    return plan_of({4}, from, to, {8, 8}).digest;
  };
  EXPECT_NE(digest({Shard(0)}, {Replicate()}), 0u);
  EXPECT_NE(digest({Shard(0)}, {Replicate()}), digest({Shard(1)}, {Replicate()}));
  EXPECT_NE(digest({Shard(0)}, {Shard(1)}), digest({Shard(1)}, {Shard(0)}));
}

}  // namespace
}  // namespace meshrun
