#include "parallel/shard/scatter_tensor.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/loopback_backend.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

void scatter_everywhere() {
  const JoinedWorld world;
  const std::vector<Placement> kinds = {Shard(0), Shard(-1), Replicate()};
  std::vector<Lengths> shapes = {{world.size}};
  if (world.size == 4) shapes.insert(shapes.end(), {{2, 2}, {1, 2, 2}});
  for (const Lengths& mesh_shape : shapes) {
    const ShardMesh::Ptr mesh = mesh_of_world(mesh_shape);
    for (const Lengths& chosen : all_coordinates(Lengths(mesh_shape.size(), 3))) {
      Placements placements;
      for (const int64_t kind : chosen) placements.push_back(kinds[static_cast<size_t>(kind)]);
      for (int source = 0; source < world.size; ++source) {
        const bool tells_shape = (chosen[0] + source) % 2 == 0;
        SCOPED_TRACE(fmt::format("{} on {} from {}", to_string(placements),
                                 mesh->device_mesh().to_string(), source));
        // Not contiguous.
        const at::Tensor whole =
            at::arange(5 * 3 * 7, at::kDouble).view({7, 3, 5}).permute({2, 1, 0});
        const ShardTensor x =
            scatter_tensor(world.rank == source ? whole : at::Tensor(), source, mesh->device_mesh(),
                           placements, tells_shape ? std::optional(Lengths{5, 3, 7}) : std::nullopt,
                           tells_shape ? std::optional(at::kDouble) : std::nullopt, tells_shape);
        EXPECT_EQ(x.sizes(), whole.sizes());
        EXPECT_EQ(x.scalar_type(), at::kDouble);
        EXPECT_EQ(x.requires_grad(), tells_shape);
        EXPECT_TRUE(x.is_leaf());
        EXPECT_TRUE(at::equal(x.to_local(), part_of(whole, *x.spec())));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

std::vector<ShardMesh::Group> groups_of(const ShardMesh& mesh) {
  std::vector<ShardMesh::Group> groups = {mesh.group()};
  for (int64_t axis = 0; axis < mesh.ndim() && mesh.ndim() > 1; ++axis) {
    groups.push_back(mesh.axis_group(axis));
  }
  return groups;
}

int64_t received(const ShardMesh& mesh) {
  int64_t bytes = 0;
  for (const ShardMesh::Group& group : groups_of(mesh)) {
    bytes += LoopbackBackend::of(group).bytes_received();
  }
  return bytes;
}

// By a backend without wire in place of the groups' own: no values arrive, and all bytes are
// counted.
void count_scattered_bytes() {
  const JoinedWorld world;
  const std::vector<Placement> kinds = {Shard(0), Shard(-1), Replicate()};
  const at::Tensor whole = at::ones({5, 3, 7}, at::kDouble);
  for (const Lengths& mesh_shape : {Lengths{4}, Lengths{2, 2}}) {
    const ShardMesh::Ptr mesh = mesh_of_world(mesh_shape);
    for (const ShardMesh::Group& group : groups_of(*mesh)) {
      group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::MPI,
                        c10::make_intrusive<LoopbackBackend>(group->getRank(), group->getSize()));
    }
    for (const Lengths& chosen : all_coordinates(Lengths(mesh_shape.size(), 3))) {
      Placements placements;
      for (const int64_t kind : chosen) placements.push_back(kinds[static_cast<size_t>(kind)]);
      for (int source = 0; source < world.size; ++source) {
        SCOPED_TRACE(fmt::format("{} on {} from {}", to_string(placements),
                                 mesh->device_mesh().to_string(), source));
        const int64_t before = received(*mesh);
        const ShardTensor x =
            scatter_tensor(world.rank == source ? whole : at::Tensor(), source, mesh->device_mesh(),
                           placements, Lengths{5, 3, 7}, at::kDouble);
        EXPECT_EQ(received(*mesh) - before, world.rank == source ? 0 : 8 * numel(x.spec()->box()));
      }
    }
  }
}

void refuse() {
  const JoinedWorld world;
  const DeviceMesh mesh = mesh_of_world({world.size})->device_mesh();
  const at::Tensor whole = world.rank == 1 ? at::ones({4, 2}) : at::Tensor();
  const auto expect = [&](const auto& call, const char* part) {
    expect_error_on_all_ranks([&] { call(); }, part);
  };
  expect([&] { scatter_tensor(whole, world.size, mesh, {Shard(0)}); }, "is not in the mesh");
  expect([&] { scatter_tensor(whole, -1, mesh, {Shard(0)}); }, "is not in the mesh");
  expect([&] { scatter_tensor(whole, 1, mesh, {Partial()}); }, "a target is Shard or Replicate");
  expect([&] { scatter_tensor(whole, 1, mesh, {Shard(2)}); }, "out of range");
  expect([&] { scatter_tensor(whole, 1, mesh, {Shard(0), Shard(1)}); }, "axes");
  expect([&] { scatter_tensor({}, 1, mesh, {Shard(0)}); }, "undefined on the source");
  expect(
      [&] {
        scatter_tensor({}, 1, mesh, {Replicate()}, Lengths{4, 2}, at::kFloat);
      },
      "undefined on the source");
  expect(
      [&] {
        scatter_tensor(whole, 1, mesh, {Shard(0)}, Lengths{4, 3}, at::kFloat);
      },
      "global_shape is [4, 3]");
  expect(
      [&] {
        scatter_tensor(whole, 1, mesh, {Shard(0)}, Lengths{4, 3});
      },
      "global_shape is [4, 3]");
  expect([&] { scatter_tensor(whole, 1, mesh, {Shard(0)}, std::nullopt, at::kDouble); },
         "dtype is Double");
  expect([&] { scatter_tensor(whole, 1, mesh, {world.rank == 0 ? Shard(0) : Shard(1)}); },
         "scatter_tensor from rank 1 to");
  EXPECT_EQ(scatter_tensor(whole, 1, mesh, {Shard(0)}).full_tensor().numel(), 8);
}

const bool kRegistered = [] {
  register_rank_function("scatter everywhere", scatter_everywhere);
  register_rank_function("count scattered bytes", count_scattered_bytes);
  return register_rank_function("refuse to scatter", refuse);
}();

TEST(ScatterTensorTest, EachRankGetsItsPart) {
  run_in_worlds("scatter everywhere", {1, 4}, {"ucx"});
  run_in_worlds("scatter everywhere", {2}, {"gloo"});
}

TEST(ScatterTensorTest, EachRankReceivesTheBytesOfItsPartAndNoOther) {
  run_in_worlds("count scattered bytes", {4}, {"ucx"});
}

TEST(ScatterTensorTest, AWrongCallIsAnErrorOnAllRanks) {
  run_in_worlds("refuse to scatter", {3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
