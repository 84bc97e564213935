// What PhysicsNeMo's ShardTensor gets wrong or refuses.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

struct Argument {
  at::Tensor whole;
  Placements placements;
  // Sizes of the pieces along one dimension, in place of the split rule's.
  std::vector<int64_t> sizes = {};
};

ShardTensor sharded(const Argument& argument, const ShardMesh::Ptr& mesh) {
  const SpecPtr from = replicated_spec(mesh, argument.whole.sizes());
  SpecPtr to = target_spec(from, argument.placements);
  if (!argument.sizes.empty()) {
    std::vector<DimCut> cuts = to->layout().cuts();
    for (DimCut& cut : cuts) {
      if (!cut.axes.empty()) cut.sizes = argument.sizes;
    }
    to = make_spec(mesh, ShardLayout::with_cuts(mesh->shape(), to->placements(), std::move(cuts)));
  }
  return ShardTensor(redistribute_local(argument.whole, from, to).clone(), to,
                     at::isFloatingType(argument.whole.scalar_type()));
}

double relative(const at::Tensor& is, const at::Tensor& should) {
  const at::Tensor a = is.to(at::kDouble);
  const at::Tensor b = should.to(at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

// Result and gradients of `call` against those of the whole tensors.
void expect_same(const std::string& what, const ShardMesh::Ptr& mesh,
                 const std::vector<Argument>& arguments, const Function& call,
                 double tolerance = 1e-12) {
  SCOPED_TRACE(what);
  Tensors whole;
  Tensors parts;
  for (const Argument& argument : arguments) {
    whole.push_back(argument.whole.detach().clone().set_requires_grad(
        at::isFloatingType(argument.whole.scalar_type())));
    parts.push_back(sharded(argument, mesh));
  }
  const at::Tensor expected = call(whole);
  const at::Tensor got = call(parts);
  ASSERT_EQ(got.sizes(), expected.sizes());
  EXPECT_LE(relative(ShardTensor(got).full_tensor().detach(), expected.detach()), tolerance);
  if (!expected.requires_grad()) return;
  (expected * expected).sum().backward();
  (got * got).sum().backward();
  for (size_t i = 0; i < whole.size(); ++i) {
    if (!whole[i].requires_grad()) continue;
    EXPECT_LE(relative(ShardTensor(parts[i].grad()).full_tensor(), whole[i].grad()), tolerance)
        << "gradient " << i;
  }
}

at::Tensor normal(at::IntArrayRef shape) { return at::randn(shape, at::kDouble); }

void extents(const ShardMesh::Ptr& mesh) {
  // 9 rows on 4 ranks, 10 on 8: torch.chunk and the split rule differ there.
  for (const int64_t rows : {9, 10, 1, 2}) {
    const auto there_and_back = [&](const Tensors& x) -> at::Tensor {
      if (!is_shard_tensor(x[0])) return x[0] * 2;
      const ShardTensor moved = ShardTensor(x[0] * 2).redistribute({}, Placements{Shard(1)});
      return moved.redistribute({}, Placements{Shard(0)});
    };
    expect_same(fmt::format("{} rows", rows), mesh, {{normal({rows, 5}), {Shard(0)}}},
                there_and_back);
  }
}

void windows(const ShardMesh::Ptr& mesh) {
  const at::Tensor x = normal({2, 3, 17, 6});
  for (const auto& [kernel, stride, padding] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {3, 2, 1}, {4, 2, 1}, {2, 3, 0}, {5, 1, 2}}) {
    const int64_t s = stride;
    const int64_t p = padding;
    expect_same(fmt::format("conv2d, kernel {}, stride {}, padding {}", kernel, stride, padding),
                mesh,
                {{x, {Shard(2)}},
                 {normal({4, 3, kernel, kernel}), {Replicate()}},
                 {normal({4}), {Replicate()}}},
                [=](const Tensors& t) { return at::conv2d(t[0], t[1], t[2], s, p); });
  }
  expect_same("padded max_pool2d", mesh, {{x, {Shard(2)}}},
              [](const Tensors& t) { return at::max_pool2d(t[0], 3, 2, 1); });
  expect_same("padded avg_pool2d", mesh, {{x, {Shard(2)}}},
              [](const Tensors& t) { return at::avg_pool2d(t[0], 3, 2, 1); });
  expect_same("interpolation to 1.7 times", mesh, {{x, {Shard(2)}}}, [](const Tensors& t) {
    return at::upsample_bilinear2d(t[0], {28, 10}, /*align_corners=*/false);
  });
  expect_same("interpolation with aligned corners", mesh, {{x, {Shard(2)}}}, [](const Tensors& t) {
    return at::upsample_bilinear2d(t[0], {28, 10}, /*align_corners=*/true);
  });
}

void norms(const ShardMesh::Ptr& mesh) {
  expect_same(
      "layer_norm with affine over a sharded dimension", mesh,
      {{normal({4, 7, 6}), {Shard(1)}},
       {normal({7, 6}), {Replicate()}},
       {normal({7, 6}), {Replicate()}}},
      [](const Tensors& t) {
        return at::layer_norm(t[0], {7, 6}, t[1], t[2]);
      },
      1e-10);
  // In bfloat16 with a mean that is large beside the deviation, against float64.
  const at::Tensor wide = (normal({2, 4, 33, 8}) + 300).to(at::kBFloat16);
  const at::Tensor expected = at::group_norm(wide.to(at::kDouble), 2);
  const at::Tensor got = at::group_norm(sharded({wide, {Shard(2)}}, mesh), 2);
  EXPECT_LE(relative(ShardTensor(got).full_tensor().detach(), expected), 1e-2);
}

void sums(const ShardMesh::Ptr& mesh) {
  std::vector<int64_t> sizes(static_cast<size_t>(mesh->size()), 1);
  sizes.back() = 11 - (mesh->size() - 1);
  expect_same("a replicated operand's gradient is summed", mesh,
              {{normal({11, 4}), {Shard(0)}, sizes}, {normal({4}), {Replicate()}}},
              [](const Tensors& t) { return t[0] * t[1]; });
  expect_same("a replicated operand's gradient is summed: cross", mesh,
              {{normal({11, 3}), {Shard(0)}, sizes}, {normal({1, 3}), {Replicate()}}},
              [](const Tensors& t) {
                const at::Tensor other = t[1].expand({11, 3});
                return t[0].select(1, 0) * other.select(1, 1) -
                       t[0].select(1, 1) * other.select(1, 0);
              });
  expect_same("mean over uneven shards", mesh, {{normal({11, 4}), {Shard(0)}, sizes}},
              [](const Tensors& t) { return t[0].mean(0) + t[0].mean(); });
  expect_same("permute and dtypes on uneven shards", mesh,
              {{normal({11, 4, 2}), {Shard(0)}, sizes}}, [](const Tensors& t) {
                return t[0].permute({2, 0, 1}).to(at::kFloat).to(at::kDouble) *
                       (t[0].permute({2, 0, 1}) > 0);
              });
}

void run_failures() {
  const JoinedWorld world;
  at::manual_seed(1);
  const ShardMesh::Ptr mesh =
      ShardMesh::of(world.manager.initialize_mesh({world.size}, {"domain"}));
  extents(mesh);
  if (world.size > 4) return;
  windows(mesh);
  norms(mesh);
  sums(mesh);
}

// One dimension on two axes, and halos on a mesh with a Replicate axis.
void run_on_two_axes() {
  const JoinedWorld world;
  at::manual_seed(1);
  const ShardMesh::Ptr mesh =
      ShardMesh::of(world.manager.initialize_mesh({2, 2}, {"dp", "domain"}));
  expect_same("one dimension on two axes", mesh,
              {{normal({9, 4}), {Shard(0), Shard(0)}}, {normal({9, 4}), {Shard(0), Shard(1)}}},
              [](const Tensors& t) { return (t[0] * t[1]).mean(0) + t[0].sum(0); });
  expect_same("conv2d on [Replicate, Shard]", mesh,
              {{normal({2, 3, 9, 6}), {Replicate(), Shard(2)}},
               {normal({4, 3, 3, 3}), {Replicate(), Replicate()}}},
              [](const Tensors& t) { return at::conv2d(t[0], t[1], {}, 1, 1); });
  expect_same("conv2d on [Shard(2), Shard(3)]", mesh,
              {{normal({2, 3, 9, 6}), {Shard(2), Shard(3)}},
               {normal({4, 3, 3, 3}), {Replicate(), Replicate()}}},
              [](const Tensors& t) { return at::conv2d(t[0], t[1], {}, 2, 1); });
}

const bool kRegistered = register_rank_function("peer_failures", run_failures) &&
                         register_rank_function("two_axes", run_on_two_axes);

class PeerFailuresTest : public testing::TestWithParam<int> {};

TEST_P(PeerFailuresTest, PassHere) {
  expect_success(run_ranks("peer_failures", env_ranks(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Worlds, PeerFailuresTest, testing::Values(1, 2, 4, 8));

TEST(PeerFailuresTest, OnTwoAxesToo) { expect_success(run_ranks("two_axes", env_ranks(4))); }

}  // namespace
}  // namespace meshrun
