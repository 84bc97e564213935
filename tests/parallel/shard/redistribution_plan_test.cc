#include "parallel/shard/redistribute/redistribution_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;
using Kind = RedistributionStep::Kind;

std::vector<Kind> kinds_of(const RedistributionPlan& plan) {
  std::vector<Kind> kinds;
  for (const RedistributionStep& step : plan.steps) kinds.push_back(step.kind);
  return kinds;
}

RedistributionPlan plan_of(const Lengths& mesh, const Placements& from, const Placements& to,
                           const Lengths& shape) {
  return plan_redistribution(ShardLayout::split(mesh, from, shape),
                             ShardLayout::split(mesh, to, shape), Lengths(mesh.size()));
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
  EXPECT_EQ(plan.steps[0].sent_sizes, (Lengths{3, 2, 0}));
  EXPECT_EQ(plan.steps[0].received_sizes, (Lengths{3, 0, 0}));
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
                            const Lengths& coordinate) {
  const auto contains = [](const Box& box, const Lengths& index) {
    for (size_t d = 0; d < index.size(); ++d) {
      if (index[d] < box.offsets[d] || index[d] >= box.offsets[d] + box.sizes[d]) return false;
    }
    return true;
  };
  int64_t lacking = 0;
  for (const Lengths& index : all_coordinates(to.global_shape())) {
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

  ShardLayout layout(const Lengths& mesh, const Lengths& shape) {
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
  const std::vector<Lengths> meshes = {{4}, {2, 2}, {3, 2}, {1, 2, 2}, {2, 2, 2}};
  for (int draw = 0; draw < 400; ++draw) {
    const Lengths& mesh = meshes[static_cast<size_t>(random.below(5))];
    const Lengths shape = {1 + random.below(7), random.below(6), 1 + random.below(3)};
    const ShardLayout from = random.layout(mesh, shape);
    const ShardLayout to = random.layout(mesh, shape);
    SCOPED_TRACE(to_string(from.placements()) + " to " + to_string(to.placements()));
    std::set<std::string> structures;
    for (const Lengths& rank : all_coordinates(mesh)) {
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

// Numbers of a local tensor, row-major.
struct Local {
  Lengths shape;
  std::vector<int64_t> numbers;
};

// Calls visit(offset in the local tensor, offset in the box) for the elements of a box in it.
template <typename Visit>
void for_each_in(const Lengths& shape, const Box& box, const Visit& visit) {
  int64_t place = 0;
  for (const Lengths& index : all_coordinates(box.sizes)) {
    int64_t offset = 0;
    for (size_t d = 0; d < shape.size(); ++d) {
      ASSERT_LT(index[d] + box.offsets[d], shape[d]);
      offset = offset * shape[d] + index[d] + box.offsets[d];
    }
    visit(static_cast<size_t>(offset), static_cast<size_t>(place++));
  }
}

Local part_of(const Local& local, const Box& box) {
  Local part{box.sizes, std::vector<int64_t>(static_cast<size_t>(numel(box)))};
  for_each_in(local.shape, box,
              [&](size_t from, size_t to) { part.numbers[to] = local.numbers[from]; });
  return part;
}

void put(Local& local, const Box& box, const Local& part) {
  for_each_in(local.shape, box,
              [&](size_t to, size_t from) { local.numbers[to] = part.numbers[from]; });
}

// What a rank has of a dimension from `begin` on.
Box narrowed(const Lengths& shape, int64_t dim, int64_t begin, int64_t size) {
  Box box{Lengths(shape.size()), shape};
  box.offsets[static_cast<size_t>(dim)] = begin;
  box.sizes[static_cast<size_t>(dim)] = size;
  return box;
}

// Carries out step `i` of all ranks' plans, by what the step says alone. `order`: the ranks along
// its axis, this one among them.
Local result_of(const std::vector<RedistributionPlan>& plans, size_t i, size_t self,
                const std::vector<size_t>& order, const std::vector<Local>& before) {
  const RedistributionStep& step = plans[self].steps[i];
  Local result{step.shape, {}};
  result.numbers.assign(static_cast<size_t>(numel({Lengths(step.shape.size()), step.shape})), -1);
  if (step.kind == Kind::kSlice) return part_of(before[self], step.own_from);
  if (step.kind == Kind::kExchange) put(result, step.own_to, part_of(before[self], step.own_from));
  const size_t own =
      static_cast<size_t>(std::find(order.begin(), order.end(), self) - order.begin());
  int64_t begin = 0;
  for (size_t peer = 0; peer < order.size() && step.is_on_wire; ++peer) {
    const RedistributionStep& theirs = plans[order[peer]].steps[i];
    const Local& source = before[order[peer]];
    if (step.kind == Kind::kExchange) {
      if (step.received_sizes[peer] == 0) continue;
      put(result, step.received[peer], part_of(source, theirs.sent[own]));
      continue;
    }
    const bool gathers = step.kind == Kind::kAllGather;
    const int64_t dim = gathers ? step.sent_dim : step.received_dim;
    int64_t sent_from = 0;
    for (size_t r = 0; r < own && !gathers; ++r) sent_from += theirs.sent_sizes[r];
    const Local part = gathers ? source
                               : part_of(source, narrowed(source.shape, theirs.sent_dim, sent_from,
                                                          theirs.sent_sizes[own]));
    const int64_t size = (gathers ? step.sent_sizes : step.received_sizes)[peer];
    EXPECT_EQ(part.shape[static_cast<size_t>(dim)], size);
    put(result, narrowed(step.shape, dim, begin, size), part);
    begin += size;
  }
  return result;
}

TEST(RedistributionPlanTest, BringsEachElementToItsPlace) {
  RandomLayouts random(11);
  const std::vector<Lengths> meshes = {{4}, {2, 2}, {3, 2}, {2, 2, 2}};
  for (int draw = 0; draw < 400; ++draw) {
    const Lengths& mesh = meshes[static_cast<size_t>(random.below(4))];
    const Lengths shape = {1 + random.below(7), 1 + random.below(5), 1 + random.below(3)};
    const ShardLayout from = random.layout(mesh, shape);
    const ShardLayout to = random.layout(mesh, shape);
    SCOPED_TRACE(to_string(from.placements()) + " to " + to_string(to.placements()));
    Local whole{shape, {}};
    for (const Lengths& index : all_coordinates(shape)) {
      whole.numbers.push_back((index[0] * shape[1] + index[1]) * shape[2] + index[2]);
    }
    const std::vector<Lengths> ranks = all_coordinates(mesh);
    std::vector<RedistributionPlan> plans;
    std::vector<Local> locals;
    for (const Lengths& rank : ranks) {
      plans.push_back(plan_redistribution(from, to, rank));
      locals.push_back(part_of(whole, from.box(rank)));
    }
    for (size_t i = 0; i < plans[0].steps.size(); ++i) {
      const int64_t axis = plans[0].steps[i].axis;
      std::vector<Local> after;
      for (size_t self = 0; self < ranks.size(); ++self) {
        std::vector<size_t> order;
        for (size_t other = 0; other < ranks.size(); ++other) {
          Lengths there = ranks[other];
          if (axis >= 0) there[static_cast<size_t>(axis)] = ranks[self][static_cast<size_t>(axis)];
          if (axis < 0 || there == ranks[self]) order.push_back(other);
        }
        after.push_back(result_of(plans, i, self, order, locals));
      }
      locals = std::move(after);
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(locals[rank].numbers, part_of(whole, to.box(ranks[rank])).numbers);
    }
  }
}

// Meshes of as many ranks, and those ranks in another order.
struct TwoMeshes {
  explicit TwoMeshes(RandomLayouts& random) {
    const std::vector<std::vector<Lengths>> by_size = {
        {{1}, {1, 1}},
        {{2}, {2, 1}, {1, 2}},
        {{3}, {1, 3}},
        {{4}, {2, 2}, {4, 1}, {1, 2, 2}, {2, 1, 2}},
        {{6}, {3, 2}, {2, 3}, {1, 6}},
        {{8}, {2, 4}, {4, 2}, {2, 2, 2}},
    };
    const auto any = [&](const auto& list) {
      return list[static_cast<size_t>(random.below(static_cast<int64_t>(list.size())))];
    };
    const std::vector<Lengths> shapes = any(by_size);
    from = any(shapes);
    to = any(shapes);
    const size_t size = all_coordinates(from).size();
    for (size_t i = 0; i < size; ++i) numbers.push_back(static_cast<int64_t>(i));
    if (random.below(2) == 0) return;
    for (size_t i = size; i-- > 1;) {
      std::swap(numbers[i],
                numbers[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    }
  }

  Lengths from;
  Lengths to;
  Lengths numbers;
};

TEST(RedistributionPlanTest, AnotherMeshGetsWhatIsLackingAtItsPlaceAndNoElementMore) {
  RandomLayouts random(13);
  for (int draw = 0; draw < 800; ++draw) {
    const TwoMeshes meshes(random);
    const Lengths shape = {random.below(9), 1 + random.below(5), 1 + random.below(3)};
    const ShardLayout from = random.layout(meshes.from, shape);
    const ShardLayout to = random.layout(meshes.to, shape);
    SCOPED_TRACE("draw " + std::to_string(draw) + ": " + to_string(from.placements()) + " to " +
                 to_string(to.placements()));
    Local whole{shape, {}};
    for (const Lengths& index : all_coordinates(shape)) {
      whole.numbers.push_back((index[0] * shape[1] + index[1]) * shape[2] + index[2]);
    }
    const std::vector<Lengths> ranks = all_coordinates(meshes.from);
    const std::vector<Lengths> there = all_coordinates(meshes.to);
    std::vector<RedistributionPlan> plans;
    std::vector<Local> locals;
    std::vector<size_t> order;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      plans.push_back(plan_mesh_change(from, to, meshes.numbers, ranks[rank]));
      locals.push_back(part_of(whole, from.box(ranks[rank])));
      order.push_back(rank);
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      ASSERT_EQ(kinds_of(plans[rank]), std::vector{Kind::kExchange});
      const RedistributionStep& step = plans[rank].steps[0];
      EXPECT_EQ(step.is_on_wire, plans[0].steps[0].is_on_wire);
      EXPECT_EQ(plans[rank].words, plans[0].words);
      EXPECT_EQ(plans[rank].digest, plans[0].digest);
      const Box wanted = to.box(there[static_cast<size_t>(meshes.numbers[rank])]);
      const Box held = from.box(ranks[rank]);
      EXPECT_EQ(step.shape, wanted.sizes);
      EXPECT_EQ(step.received_elements, numel(wanted) - numel(intersect(held, wanted)));
      for (size_t peer = 0; peer < ranks.size(); ++peer) {
        EXPECT_EQ(step.received_sizes[peer], plans[peer].steps[0].sent_sizes[rank]);
      }
      EXPECT_EQ(step.sent_sizes[rank], 0);
      const Local got = result_of(plans, 0, rank, order, locals);
      EXPECT_EQ(got.numbers, part_of(whole, wanted).numbers);
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RedistributionPlanTest, RanksWithTheSamePieceShareWhatTheySendToAnotherMesh) {
  const ShardLayout from = ShardLayout::split({2, 4}, {Shard(0), Replicate()}, {8, 8});
  const ShardLayout to = ShardLayout::split({8}, {Shard(1)}, {8, 8});
  const Lengths numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  for (const Lengths& rank : all_coordinates({2, 4})) {
    const RedistributionPlan plan = plan_mesh_change(from, to, numbers, rank);
    const Lengths& sent = plan.steps[0].sent_sizes;
    EXPECT_EQ(std::count(sent.begin(), sent.end(), 4), 1);
    EXPECT_EQ(std::count(sent.begin(), sent.end(), 0), 7);
  }
}

TEST(RedistributionPlanTest, SummandsAreReducedBeforeTheyChangeTheMesh) {
  const ShardLayout from = ShardLayout::split({2, 2}, {Partial(), Shard(0)}, {8, 3});
  const ShardLayout to = ShardLayout::split({4}, {Shard(0)}, {8, 3});
  EXPECT_EQ(kinds_of(plan_mesh_change(from, to, {0, 1, 2, 3}, {0, 1})),
            (std::vector{Kind::kAllReduce, Kind::kExchange}));
  // Both ranks of a pair have the half that they need a quarter of.
  const RedistributionPlan plan = plan_mesh_change(from, to, {0, 2, 1, 3}, {0, 1});
  ASSERT_EQ(kinds_of(plan), (std::vector{Kind::kAllReduce, Kind::kExchange}));
  EXPECT_FALSE(plan.steps[1].is_on_wire);
}

TEST(RedistributionPlanTest, AMeshOfOneRankMovesNothing) {
  const ShardLayout from = ShardLayout::split({1}, {Partial()}, {8, 3});
  const ShardLayout to = ShardLayout::split({1, 1}, {Shard(0), Shard(1)}, {8, 3});
  const RedistributionPlan plan = plan_mesh_change(from, to, {0}, {0});
  ASSERT_EQ(kinds_of(plan), std::vector{Kind::kExchange});
  EXPECT_FALSE(plan.steps[0].is_on_wire);
}

TEST(RedistributionPlanTest, ADigestTellsPlansApart) {
  const auto digest = [](const Placements& from, const Placements& to) {
    return plan_of({4}, from, to, {8, 8}).digest;
  };
  EXPECT_NE(digest({Shard(0)}, {Replicate()}), 0u);
  EXPECT_NE(digest({Shard(0)}, {Replicate()}), digest({Shard(1)}, {Replicate()}));
  EXPECT_NE(digest({Shard(0)}, {Shard(1)}), digest({Shard(1)}, {Shard(0)}));
  const ShardLayout rows = ShardLayout::split({2}, {Shard(0)}, {8, 8});
  EXPECT_NE(plan_mesh_change(rows, rows, {0, 1}, {0}).digest,
            plan_mesh_change(rows, rows, {1, 0}, {0}).digest);
}

}  // namespace
}  // namespace meshrun
