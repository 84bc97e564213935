// The tensor itself: what LibTorch's own code sees of it, what it refuses, and how it is made.
#include "parallel/shard/shard_tensor.h"

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/collectives.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using Extents = std::vector<int64_t>;

at::Tensor numbered(const Extents& shape) {
  return at::arange(at::empty(shape).numel(), at::kDouble).view(shape);
}

// Cut along the first dimension by all ranks.
struct Rows {
  explicit Rows(const JoinedWorld& world, const Extents& shape = {7, 3})
      : mesh(mesh_of_world({world.size})),
        whole(numbered(shape)),
        spec(make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, shape))) {}

  ShardTensor tensor(bool requires_grad = false) const {
    return {part_of(whole, *spec), spec, requires_grad};
  }

  const ShardMesh::Ptr mesh;
  const at::Tensor whole;
  const SpecPtr spec;
};

void expect_whole(const at::Tensor& tensor, const at::Tensor& whole) {
  EXPECT_TRUE(at::equal(ShardTensor(tensor).full_tensor(), whole));
}

void look_like_a_tensor(const JoinedWorld& world) {
  const Rows rows(world);
  const ShardTensor x = rows.tensor();
  EXPECT_EQ(x.sizes(), rows.whole.sizes());
  EXPECT_EQ(x.strides(), rows.whole.strides());
  EXPECT_EQ(x.numel(), 21);
  EXPECT_EQ(x.scalar_type(), at::kDouble);
  EXPECT_TRUE(x.device().is_cpu());
  EXPECT_EQ(x.to_local().sizes(), at::IntArrayRef(x.spec()->local_shape()));
  EXPECT_EQ(x.offsets(), Extents{x.spec()->box().offsets[0]});
  EXPECT_EQ(x.offsets(0), x.spec()->box().offsets[0]);
  EXPECT_NE(error_of([&] { x.offsets(1); }).find("mesh dimension 1"), std::string::npos);
  std::ostringstream text;
  text << x;
  EXPECT_NE(text.str().find("Shard(0)"), std::string::npos);
  EXPECT_NE(text.str().find("[7, 3]"), std::string::npos);
  EXPECT_NE(text.str().find("CPUDoubleType"), std::string::npos);

  // Its memory is not that of the global shape.
  EXPECT_THROW(x.unsafeGetTensorImpl()->storage(), c10::Error);
  EXPECT_THROW(x.data_ptr(), c10::Error);
  EXPECT_THROW(x.const_data_ptr<double>(), c10::Error);
  EXPECT_THROW(x.as_strided({3}, {1}), c10::Error);
  // Nobody unwraps it here: no kernel may run on it.
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard without{c10::DispatchKeySet(kOperatorKey) |
                                                     c10::DispatchKeySet(kFunctionKey)};
    EXPECT_THROW(at::relu(x), c10::Error);
    EXPECT_THROW(at::add(x, x), c10::Error);
  }
}

void copy_and_detach(const JoinedWorld& world) {
  const Rows rows(world);
  ShardTensor x = rows.tensor(true);
  const at::Tensor detached = x.detach();
  EXPECT_FALSE(detached.requires_grad());
  EXPECT_EQ(local_of(detached).const_data_ptr(), local_of(x).const_data_ptr());
  EXPECT_EQ(spec_of(detached), x.spec());
  const at::Tensor data = x.tensor_data();
  EXPECT_TRUE(local_of(data).is_same(local_of(x)));
  const at::Tensor variable = x.variable_data();
  EXPECT_EQ(spec_of(variable), x.spec());

  ShardTensor other = rows.tensor();
  other.set_data(x.redistribute(std::nullopt, Placements{Shard(1)}).detach());
  EXPECT_EQ(other.placements(), Placements{Shard(1)});
  expect_whole(other, rows.whole);
  EXPECT_THROW(other.set_data(at::ones({7, 3}, at::kDouble)), c10::Error);

  // A result of redistribute() has memory of its own.
  ShardTensor copy = x.redistribute(std::nullopt, Placements{Shard(0)});
  EXPECT_FALSE(local_of(copy).is_alias_of(local_of(x)) && local_of(x).numel() > 0);
  const ShardTensor whole(rows.whole, replicated_spec(rows.mesh, {7, 3}));
  const ShardTensor part = whole.redistribute(std::nullopt, Placements{Shard(0)}, true);
  EXPECT_FALSE(local_of(part).is_alias_of(rows.whole) && local_of(part).numel() > 0);
  expect_whole(part, rows.whole);
}

void write_in_place(const JoinedWorld& world) {
  const Rows rows(world);
  ShardTensor x = rows.tensor();
  const at::Tensor local = local_of(x);
  at::Tensor& self = x;
  self.mul_(2).add_(at::Tensor(rows.tensor()));
  EXPECT_TRUE(local_of(x).is_same(local)) << "in-place operators write elsewhere";
  expect_whole(x, rows.whole * 3);
  at::Tensor view = self.unsqueeze(1);
  view.mul_(2);
  expect_whole(x, rows.whole * 6);

  const c10::InferenceMode inference;
  const ShardTensor y = rows.tensor();
  const at::Tensor sum = at::add(y, y);
  EXPECT_TRUE(at::equal(local_of(sum), local_of(y) * 2));
  at::Tensor moved = y.redistribute(std::nullopt, Placements{Shard(1)}, true);
  moved.add_(1);
  EXPECT_TRUE(at::equal(ShardTensor(moved).full_tensor(), rows.whole + 1));
}

void go_backward(const JoinedWorld& world) {
  const Rows rows(world);
  // The loss is Partial on every rank.
  ShardTensor x = rows.tensor(true);
  at::Tensor loss = at::mul(x, x).sum();
  EXPECT_TRUE(spec_of(loss)->has_partial());
  loss.backward();
  ASSERT_TRUE(is_shard_tensor(x.grad()));
  EXPECT_EQ(spec_of(x.grad())->placements(), Placements{Shard(0)});
  expect_whole(x.grad(), rows.whole * 2);

  // A plain leaf: refused, then announced.
  at::Tensor leaf = at::full({3}, 2.0, at::kDouble).requires_grad_();
  ShardTensor y = rows.tensor(true);
  EXPECT_NE(error_of([&] { at::mul(y, leaf); }).find("announce the leaf"), std::string::npos);
  announce_plain_leaf(leaf);
  at::mul(y, leaf).sum().backward();
  ASSERT_TRUE(leaf.grad().defined());
  EXPECT_FALSE(is_shard_tensor(leaf.grad()));
  EXPECT_TRUE(at::equal(leaf.grad(), rows.whole.sum(0)));
  expect_whole(y.grad(), at::full({7, 3}, 2.0, at::kDouble));

  // from_local keeps the history of the local tensor.
  at::Tensor part = part_of(rows.whole, *rows.spec).requires_grad_();
  const ShardTensor z =
      ShardTensor::from_local(part * 3, rows.mesh->device_mesh(), Placements{Shard(0)});
  at::mul(z, z).sum().backward();
  EXPECT_TRUE(at::equal(part.grad(), part.detach() * 18));
}

void promote_plain_tensors(const JoinedWorld& world) {
  const Rows rows(world);
  const at::Tensor x = rows.tensor();
  const at::Tensor row = at::full({3}, 2.0, at::kDouble);
  expect_whole(at::add(x, row), rows.whole + 2);
  {
    const PromotionModeGuard disabled(PromotionMode::kDisabled);
    expect_whole(at::add(x, at::scalar_tensor(2.0, at::kDouble)), rows.whole + 2);
    EXPECT_NE(error_of([&] { at::add(x, row); }).find("PromotionMode is disabled"),
              std::string::npos);
    {
      const PromotionModeGuard warns(PromotionMode::kWarn);
      expect_whole(at::add(x, row), rows.whole + 2);
    }
    EXPECT_EQ(promotion_mode(), PromotionMode::kDisabled);
  }
  EXPECT_EQ(promotion_mode(), PromotionMode::kSilent);
  EXPECT_TRUE(ShardTensor::patches_enabled());
  {
    const ShardTensorPatchesGuard off(false);
    EXPECT_FALSE(ShardTensor::patches_enabled());
    const ShardTensorPatchesGuard on(true);
    EXPECT_TRUE(ShardTensor::patches_enabled());
  }
  EXPECT_TRUE(ShardTensor::patches_enabled());
}

void refuse_collectives(const JoinedWorld& world) {
  const Rows rows(world);
  const at::Tensor x = rows.tensor(true);
  const Extents pieces(static_cast<size_t>(world.size), 7);
  const auto refuses = [&](const char* name, const auto& call) {
    SCOPED_TRACE(name);
    expect_error_on_all_ranks([&] { call(); }, "to_local()");
  };
  refuses("all_gather_v", [&] { all_gather_v(x); });
  refuses("all_gather_v_async", [&] { all_gather_v_async(x).wait(); });
  refuses("gather_v", [&] { gather_v(x); });
  refuses("scatter_v", [&] { scatter_v(x, pieces, 0, 0); });
  refuses("reduce_scatter_v", [&] { reduce_scatter_v(x, rows.spec->shard_sizes(0)); });
  refuses("all_to_all_v", [&] { all_to_all_v(x, pieces, pieces); });
  refuses("distributed_transpose", [&] { distributed_transpose(x, 0, 1); });
  refuses("fused_all_reduce", [&] { fused_all_reduce(x); });
  refuses("reduce_from_parallel_region", [&] { reduce_from_parallel_region(x); });
  refuses("gather_from_parallel_region", [&] { gather_from_parallel_region(x, 0, {}); });
  // One rank's mistake.
  refuses("all_gather_v on rank 0", [&] { all_gather_v(world.rank == 0 ? x : at::ones({7, 3})); });
  std::vector<at::Tensor> tensors = {x.detach()};
  refuses("c10d's allreduce", [&] { world.manager.world()->allreduce(tensors)->wait(); });
  refuses("c10d's broadcast", [&] { world.manager.world()->broadcast(tensors)->wait(); });
}

void make_from_local(const JoinedWorld& world) {
  const Rows rows(world, {9, 3});
  const DeviceMesh mesh = rows.mesh->device_mesh();
  const at::Tensor part = part_of(rows.whole, *rows.spec);
  expect_whole(ShardTensor::from_local(part, mesh, Placements{Shard(-2)}), rows.whole);
  EXPECT_EQ(ShardTensor::from_local(rows.whole, mesh).placements(), Placements{Replicate()});

  // As torch.chunk cuts, and told by the caller: nothing is sent, so one rank may do it alone.
  if (world.rank == 0) {
    const int64_t chunk = (9 + world.size - 1) / world.size;
    const ShardTensor x =
        ShardTensor::from_local(rows.whole.narrow(0, 0, chunk), mesh, Placements{Shard(0)},
                                ShardingShapes::chunk(), Extents{9, 3});
    EXPECT_EQ(x.spec()->layout(), ShardLayout::chunk({world.size}, {Shard(0)}, {9, 3}));
    std::vector<Extents> shapes(static_cast<size_t>(world.size), Extents{0, 3});
    shapes[0] = {9, 3};
    const ShardTensor y = ShardTensor::from_local(rows.whole, mesh, Placements{Shard(0)},
                                                  ShardingShapes::given({{0, shapes}}));
    EXPECT_EQ(y.spec()->shard_sizes(0)[0], 9);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({9, 3}));
  }
  // Nobody has anything.
  const ShardTensor empty = ShardTensor::from_local(at::empty({0, 3}), mesh, Placements{Shard(0)});
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_EQ(empty.full_tensor().sizes(), at::IntArrayRef({0, 3}));
}

void refuse_wrong_calls(const JoinedWorld& world) {
  const Rows rows(world);
  const DeviceMesh mesh = rows.mesh->device_mesh();
  const ShardTensor x = rows.tensor();
  const bool first = world.rank == 0;
  const auto refuses = [&](const auto& call, const char* part) {
    expect_error_on_all_ranks([&] { call(); }, part);
  };
  refuses([&] { x.redistribute(mesh, std::nullopt); }, "needs placements");
  refuses([&] { x.redistribute(mesh, Placements{Partial()}); }, "Shard or Replicate");
  refuses([&] { x.redistribute(mesh, Placements{Shard(2)}); }, "out of range");
  refuses([&] { x.redistribute(mesh, Placements{Shard(0), Shard(1)}); }, "1 axes");
  refuses(
      [&] {
        x.redistribute(mesh_of_world({1, world.size})->device_mesh(), Placements{Shard(0)});
      },
      "stays on one mesh");
  const auto from = [&](const at::Tensor& local, const Placements& placements,
                        const std::optional<Extents>& shape = std::nullopt) {
    return ShardTensor::from_local(local, mesh, placements, ShardingShapes::infer(), shape);
  };
  refuses([&] { from(at::ones({2, 3}), {Shard(2)}); }, "out of range");
  refuses([&] { from(at::ones({2, 3}), {Shard(0), Shard(1)}); }, "axes");
  refuses([&] { from(at::ones({2, 3}), {Shard(0)}, Extents{2, 3}); }, "is said to be [2, 3]");
  refuses([&] { from(at::ones({2, 3}, first ? at::kFloat : at::kDouble), {Shard(0)}); }, "dtype");
  refuses(
      [&] {
        from(first ? at::ones({2}) : at::ones({2, 3}), {Shard(0)});
      },
      "number of dimensions");
  refuses([&] { from(at::ones({2, 3}), {first ? Shard(0) : Shard(1)}); }, "placements");
  refuses([&] { from(at::ones({2, first ? 3 : 4}), {Shard(0)}); }, "do not make a grid");
  refuses([&] { from(at::ones({first ? 2 : 3}), {Replicate()}); }, "do not make a grid");
  refuses(
      [&] {
        ShardTensor::from_local(at::ones({2, 3}), mesh, Placements{Shard(0)},
                                ShardingShapes::chunk());
      },
      "global");
  // Nothing is sent, so each rank says what its own part should be.
  EXPECT_NE(error_of([&] {
              ShardTensor::from_local(at::ones({100, 3}), mesh, Placements{Shard(0)},
                                      ShardingShapes::chunk(), Extents{9, 3});
            }).find("the local tensor is [100, 3]"),
            std::string::npos);
  refuses(
      [&] {
        ShardTensor::from_local(at::ones({2, 3}), mesh, Placements{Shard(0)},
                                ShardingShapes::given({}));
      },
      "says nothing of mesh dimension 0");
  EXPECT_NE(error_of([&] { ShardTensor{at::ones({2})}; }).find("is not a ShardTensor"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              ShardTensor(at::ones({8, 3}), rows.spec);
            }).find("the spec says"),
            std::string::npos);
  EXPECT_THROW(ShardTensor::from_local(x, mesh), c10::Error);
  expect_whole(x, rows.whole);
}

void use_tensors() {
  const JoinedWorld world;
  look_like_a_tensor(world);
  copy_and_detach(world);
  write_in_place(world);
  go_backward(world);
  promote_plain_tensors(world);
  make_from_local(world);
}

void refuse_all() {
  const JoinedWorld world;
  refuse_collectives(world);
  refuse_wrong_calls(world);
}

const bool kRegistered = register_rank_function("use sharded tensors", use_tensors) &&
                         register_rank_function("refuse sharded tensors", refuse_all);

TEST(ShardTensorTest, IsATensorOfTheGlobalShapeWithoutItsMemory) {
  run_in_worlds("use sharded tensors", {1, 2, 4}, {"ucx"});
}

TEST(ShardTensorTest, WrongCallsAreErrorsOnAllRanks) {
  run_in_worlds("refuse sharded tensors", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
