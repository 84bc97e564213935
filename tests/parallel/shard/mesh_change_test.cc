// Redistribution to another mesh of the same ranks: values, gradients and second derivatives are
// those of the whole tensor, for drawn meshes, orders of ranks, layouts and uneven pieces.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

std::vector<Lengths> shapes_of_meshes(int64_t world) {
  switch (world) {
    case 1:
      return {{1}, {1, 1}};
    case 4:
      return {{4}, {2, 2}, {4, 1}, {1, 4}, {2, 1, 2}};
    default:
      return {{world}, {1, world}, {world, 1}};
  }
}

ShardMesh::Ptr mesh_of_ranks(const Lengths& shape, std::vector<int> ranks, int rank) {
  MeshLayout layout{{}, shape, std::move(ranks)};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    layout.names.push_back(fmt::format("axis{}", axis));
  }
  return ShardMesh::of(DeviceMesh(layout, rank));
}

// Each shape with the ranks in order, and in a drawn order.
std::vector<ShardMesh::Ptr> drawn_meshes(Draw& draw, const JoinedWorld& world) {
  std::vector<ShardMesh::Ptr> meshes;
  for (const Lengths& shape : shapes_of_meshes(world.size)) {
    std::vector<int> ranks(static_cast<size_t>(world.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    meshes.push_back(mesh_of_ranks(shape, ranks, world.rank));
    for (size_t i = ranks.size(); i-- > 1;) {
      std::swap(ranks[i], ranks[static_cast<size_t>(draw.integer(0, static_cast<int64_t>(i)))]);
    }
    meshes.push_back(mesh_of_ranks(shape, ranks, world.rank));
  }
  return meshes;
}

// Small whole numbers: sums and products are exact, in any order.
at::Tensor drawn_whole(Draw& draw, const Lengths& shape, at::ScalarType dtype) {
  return draw.integers(shape, 0, 6).to(dtype);
}

SpecPtr drawn_spec(Draw& draw, const ShardMesh::Ptr& mesh, const Lengths& shape, bool partial) {
  ShardLayout layout = draw_layout(draw, mesh->shape(), shape, partial, true);
  if (layout.has_partial() && draw.chance(0.3)) {
    Placements placements = layout.placements();
    for (Placement& placement : placements) {
      if (placement.is_partial()) placement = Partial(PartialOp::kAvg);
    }
    layout = layout.with_placements(placements);
  }
  return make_spec(mesh, std::move(layout));
}

void expect_moved(const at::Tensor& tensor, const at::Tensor& whole, const SpecPtr& spec) {
  ASSERT_TRUE(is_shard_tensor(tensor));
  ASSERT_EQ(spec_of(tensor)->mesh(), spec->mesh());
  ASSERT_EQ(spec_of(tensor)->layout(), spec->layout());
  EXPECT_TRUE(at::equal(local_of(tensor), part_of(whole, *spec)));
}

void move_values(Draw& draw, const SpecPtr& from, const SpecPtr& to) {
  const at::ScalarType dtype = from->has_partial()
                                   ? at::kDouble
                                   : draw.one_of<at::ScalarType>({at::kDouble, at::kHalf, at::kLong,
                                                                  at::kBool, at::kComplexFloat});
  const at::Tensor whole = drawn_whole(draw, from->global_shape(), dtype);
  const at::Tensor part = part_of(whole, *from).to(dtype);
  const at::Tensor kept = part.clone();
  const ShardTensor x(part, from);
  const ShardTensor moved = x.redistribute(to->mesh()->device_mesh(), to->placements(),
                                           /*async_op=*/draw.chance(0.5));
  EXPECT_EQ(moved.placements(), to->placements());
  expect_moved(moved, whole, moved.spec());
  EXPECT_FALSE(local_of(moved).is_alias_of(local_of(x)));
  c10::intrusive_ptr<c10d::Work> work;
  const at::Tensor there = redistribute_local(part, from, to, draw.chance(0.5) ? &work : nullptr);
  if (work) work->wait();
  EXPECT_TRUE(at::equal(there, part_of(whole, *to)));
  EXPECT_TRUE(at::equal(part, kept)) << "the source has changed";
}

// y = x^2, on the other mesh: the gradient is 2 x c, and that of the sum of its products with v is
// 2 c v, where c arrives in a layout of its own.
void move_gradients(Draw& draw, const SpecPtr& from, const SpecPtr& to) {
  const Lengths& shape = from->global_shape();
  const at::Tensor whole = drawn_whole(draw, shape, at::kDouble);
  const at::Tensor cotangent = drawn_whole(draw, shape, at::kDouble);
  const at::Tensor seed = drawn_whole(draw, shape, at::kDouble);
  const SpecPtr of_cotangent = drawn_spec(draw, to->mesh(), shape, true);
  const SpecPtr of_gradient = gradient_spec(from);
  const ShardTensor x(part_of(whole, *from), from, true);
  const at::Tensor moved = meshrun::redistribute(x, to, {}, {.async = draw.chance(0.5)});
  expect_moved(moved, whole, to);
  const at::Tensor y = at::mul(moved, moved);
  const ShardTensor c(part_of(cotangent, *of_cotangent), of_cotangent);
  const at::Tensor first = torch::autograd::grad({y}, {x}, {c}, true, true)[0];
  ASSERT_TRUE(is_shard_tensor(first));
  EXPECT_EQ(spec_of(first)->mesh(), from->mesh());
  EXPECT_TRUE(at::equal(ShardTensor(first).full_tensor(), whole * cotangent * 2));
  const ShardTensor v(part_of(seed, *of_gradient), of_gradient);
  const at::Tensor second = torch::autograd::grad({first}, {x}, {v})[0];
  EXPECT_TRUE(at::equal(ShardTensor(second).full_tensor(), cotangent * seed * 2));

  // The leaf's gradient lies as the leaf does.
  ShardTensor leaf(part_of(whole, *from), from, true);
  const ShardTensor there = leaf.redistribute(to->mesh()->device_mesh(), to->placements());
  for (int pass = 1; pass <= 2; ++pass) {
    at::mul(there, there).sum().backward({}, /*retain_graph=*/true);
    expect_moved(leaf.grad(), whole * 2 * pass, of_gradient);
  }
}

void move_between_drawn_meshes(const JoinedWorld& world) {
  Draw draw(20261129);
  const std::vector<ShardMesh::Ptr> meshes = drawn_meshes(draw, world);
  const int draws = std::getenv("MESHRUN_TEST_WHOLE") != nullptr ? 3000 : 200;
  for (int i = 0; i < draws; ++i) {
    Lengths shape(static_cast<size_t>(draw.integer(0, 4)));
    for (int64_t& extent : shape) extent = draw.chance(0.05) ? 0 : draw.extent();
    const SpecPtr from = drawn_spec(draw, draw.one_of(meshes), shape, true);
    const SpecPtr to = drawn_spec(draw, draw.one_of(meshes), shape, false);
    SCOPED_TRACE(fmt::format("draw {}: {} to {}", i, from->to_string(), to->to_string()));
    move_values(draw, from, to);
    if (testing::Test::HasFailure()) return;
    move_gradients(draw, from, to);
    if (testing::Test::HasFailure()) return;
  }
}

// Every kind of source and target on two meshes that programs have.
void move_between_common_meshes(const JoinedWorld& world) {
  const ShardMesh::Ptr square = mesh_of_ranks({2, 2}, {0, 1, 2, 3}, world.rank);
  const std::vector<ShardMesh::Ptr> others = {mesh_of_ranks({4}, {0, 1, 2, 3}, world.rank),
                                              mesh_of_ranks({4, 1}, {0, 1, 2, 3}, world.rank),
                                              mesh_of_ranks({2, 2}, {0, 2, 1, 3}, world.rank),
                                              mesh_of_ranks({4}, {3, 1, 0, 2}, world.rank)};
  const Lengths shape = {5, 3};
  const at::Tensor whole = at::arange(15, at::kDouble).view(shape);
  const std::vector<Placement> kinds = {Shard(0), Shard(1), Replicate(), Partial()};
  for (const Lengths& source : all_coordinates({4, 4})) {
    const SpecPtr from = make_spec(
        square,
        ShardLayout::split(
            {2, 2}, {kinds[static_cast<size_t>(source[0])], kinds[static_cast<size_t>(source[1])]},
            shape));
    for (const ShardMesh::Ptr& mesh : others) {
      for (const Lengths& target : all_coordinates(Lengths(mesh->shape().size(), 3))) {
        Placements placements;
        for (const int64_t kind : target) placements.push_back(kinds[static_cast<size_t>(kind)]);
        SCOPED_TRACE(fmt::format("{} to {} on {}", from->to_string(), to_string(placements),
                                 mesh->device_mesh().to_string()));
        const ShardTensor moved =
            ShardTensor(part_of(whole, *from), from).redistribute(mesh->device_mesh(), placements);
        EXPECT_EQ(moved.spec()->layout(), ShardLayout::split(mesh->shape(), placements, shape));
        expect_moved(moved, whole, moved.spec());
        EXPECT_TRUE(at::equal(moved.full_tensor(), whole));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

void plan_mesh_changes_once(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const ShardMesh::Ptr other = mesh_of_world({1, world.size});
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {7, 3}));
  const at::Tensor whole = at::arange(21, at::kDouble).view({7, 3});
  ShardTensor x(part_of(whole, *spec), spec, true);
  const auto there_and_back = [&](const ShardTensor& tensor) {
    const ShardTensor there =
        tensor.redistribute(other->device_mesh(), Placements{Replicate(), Shard(1)});
    return there.redistribute(mesh->device_mesh(), Placements{Shard(0)});
  };
  const ShardTensor cotangent(part_of(whole, *spec), spec);
  const auto train = [&] {
    const ShardTensor back = there_and_back(x);
    EXPECT_EQ(back.spec(), spec) << "a spec was made anew";
    torch::autograd::backward({back}, {cotangent});
  };
  train();
  const int64_t made = RedistributionPlans::num_made();
  for (int i = 0; i < 20; ++i) train();
  EXPECT_EQ(RedistributionPlans::num_made(), made);
  expect_moved(x.grad(), whole * 21, spec);
}

void move_over_meshes() {
  const JoinedWorld world;
  move_between_drawn_meshes(world);
  plan_mesh_changes_once(world);
  if (world.size == 4) move_between_common_meshes(world);
}

void refuse_meshes() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const ShardMesh::Ptr other = mesh_of_world({world.size, 1});
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {7, 3}));
  const at::Tensor whole = at::arange(21, at::kDouble).view({7, 3});
  const ShardTensor x(part_of(whole, *spec), spec);
  const auto refuses = [&](const Placements& placements, const char* part) {
    expect_error_on_all_ranks([&] { x.redistribute(other->device_mesh(), placements); }, part);
  };
  refuses({Shard(0), Partial()}, "Shard or Replicate on every axis");
  refuses({Shard(0)}, "has 2 axes");
  refuses({Shard(0), Shard(2)}, "out of range");
  // Ranks name themselves, so each has other words.
  const DeviceMesh alone(MeshLayout{{"alone"}, {1}, {world.rank}}, world.rank);
  const std::string error = error_of([&] { x.redistribute(alone, Placements{Shard(0)}); });
  EXPECT_NE(error.find(fmt::format("the ranks [{}] of", world.rank)), std::string::npos) << error;
  EXPECT_NE(error.find("the ranks [0, 1"), std::string::npos) << error;
  EXPECT_THROW(x.redistribute(alone, Placements{Shard(0)}), ShardTensorError);
  expect_error_on_all_ranks(
      [&] {
        x.redistribute(other->device_mesh(),
                       Placements{world.rank == 0 ? Replicate() : Shard(1), Replicate()});
      },
      "redistribution of [7, 3]");
  EXPECT_TRUE(at::equal(x.full_tensor(), whole)) << "the group is of no use any more";
}

const bool kRegistered = register_rank_function("move over meshes", move_over_meshes) &&
                         register_rank_function("refuse meshes", refuse_meshes);

TEST(MeshChangeTest, MovesPartsAndGradientsBitEqual) {
  run_in_worlds("move over meshes", {1, 2, 3, 4}, {"ucx"});
  run_in_worlds("move over meshes", {4}, {"gloo"});
}

TEST(MeshChangeTest, WrongMeshesAreErrorsOnAllRanks) {
  run_in_worlds("refuse meshes", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
