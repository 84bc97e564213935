// The tensor itself: what LibTorch's own code sees of it, what it refuses, and how it is made.
#include "parallel/shard/shard_tensor.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fmt/format.h"
#include "parallel/base/collective_errors.h"
#include "parallel/collectives/collectives.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/pointwise.h"
#include "parallel/shard/dispatch/promotion.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/library.h"
#include "torch/nn/cloneable.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

at::Tensor numbered(const Lengths& shape) {
  return at::arange(at::empty(shape).numel(), at::kDouble).view(shape);
}

// Cut along the first dimension by all ranks.
struct Rows {
  explicit Rows(const JoinedWorld& world, const Lengths& shape = {7, 3})
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
  EXPECT_EQ(x.offsets(), Lengths{x.spec()->box().offsets[0]});
  EXPECT_EQ(x.offsets(0), x.spec()->box().offsets[0]);
  EXPECT_NE(error_of([&] { x.offsets(1); }).find("mesh dimension 1"), std::string::npos);
  // Contiguous of any number of dimensions: what LibTorch says of such a tensor.
  for (const Lengths& shape : std::vector<Lengths>{{},
                                                   {5},
                                                   {0},
                                                   {4, 0, 3},
                                                   {7, 3, 2},
                                                   {4, 1, 2, 3},
                                                   {4, 3, 1, 1},
                                                   {4, 1, 2, 1, 1},
                                                   {4, 2, 1, 3, 1, 2}}) {
    const at::Tensor whole = numbered(shape);
    const Placement placement = shape.empty() ? Replicate() : Shard(0);
    const SpecPtr spec = make_spec(rows.mesh, ShardLayout::split({world.size}, {placement}, shape));
    const ShardTensor sharded(part_of(whole, *spec), spec);
    EXPECT_EQ(sharded.sizes(), whole.sizes());
    EXPECT_EQ(sharded.strides(), whole.strides());
    EXPECT_EQ(sharded.numel(), whole.numel());
    EXPECT_TRUE(sharded.is_contiguous());
    EXPECT_TRUE(sharded.is_non_overlapping_and_dense());
    for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
      EXPECT_EQ(sharded.is_contiguous(format), whole.is_contiguous(format));
    }
    EXPECT_EQ(sharded.suggest_memory_format(), whole.suggest_memory_format());
  }
  std::ostringstream text;
  text << x;
  EXPECT_NE(text.str().find("Shard(0)"), std::string::npos);
  EXPECT_NE(text.str().find("[7, 3]"), std::string::npos);
  EXPECT_NE(text.str().find("CPUDoubleType"), std::string::npos);

  // Its memory is not that of the global shape.
  EXPECT_NE(error_of([&] { x.unsafeGetTensorImpl()->storage(); }).find("full_tensor()"),
            std::string::npos);
  const at::Tensor& plain = x;
  for (const std::string& error :
       {error_of([&] { x.data_ptr(); }), error_of([&] { x.const_data_ptr<double>(); }),
        error_of([&] { plain.accessor<double, 2>(); }), error_of([&] { text << plain; })}) {
    EXPECT_NE(error.find("doesn't have storage"), std::string::npos) << error;
  }
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

void plain_times_sharded_number(const JoinedWorld& world) {
  const Rows rows(world);
  const ShardTensor x = rows.tensor();
  at::Tensor plain = at::arange(4, at::kDouble);
  const at::Tensor norm = x.square().sum().sqrt();
  ASSERT_TRUE(is_shard_tensor(norm));
  plain.mul_(norm);
  EXPECT_FALSE(is_shard_tensor(plain));
  const double whole = x.full_tensor().square().sum().sqrt().item<double>();
  EXPECT_TRUE(at::allclose(plain, at::arange(4, at::kDouble) * whole));
  std::vector<at::Tensor> gradients = {at::ones({3}, at::kDouble), at::ones({2}, at::kDouble)};
  at::_foreach_mul_(gradients, norm);
  EXPECT_TRUE(at::allclose(gradients[1], at::full({2}, whole, at::kDouble)));
  const PromotionModeGuard disabled(PromotionMode::kDisabled);
  plain.mul_(norm);
  EXPECT_THROW(plain.mul_(ShardTensor(x.select(0, 0))), ShardTensorError);
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

void hand_out_an_alias(const JoinedWorld& world) {
  const Rows rows(world);
  ShardTensor x = rows.tensor();
  at::Tensor local = x.to_local();
  EXPECT_FALSE(local.is_same(local_of(x)));
  EXPECT_EQ(local.const_data_ptr(), local_of(x).const_data_ptr());
  // What is said of the alias is not said of what the ShardTensor holds.
  local.set_requires_grad(true);
  EXPECT_FALSE(local_of(x).requires_grad());
  local.set_requires_grad(false);
  local.unsqueeze_(0);
  EXPECT_EQ(local_of(x).sizes(), at::IntArrayRef(x.spec()->local_shape()));
  // Its memory is, and both count who wrote it.
  const auto version = x._version();
  local.add_(1);
  EXPECT_EQ(x._version(), version + 1);
  expect_whole(x, rows.whole + 1);

  // So autograd finds writes to what function handlers saved.
  const char* modified = "modified by an inplace operation";
  ShardTensor y = rows.tensor(true);
  at::Tensor soft = at::softmax(y, 1);
  soft.mul_(2);
  EXPECT_NE(error_of([&] { soft.sum().backward(); }).find(modified), std::string::npos);
  ShardTensor z = rows.tensor(true);
  at::Tensor input = at::mul(z, 1);
  at::Tensor product = at::linear(input, at::ones({2, 3}, at::kDouble).requires_grad_());
  input.mul_(2);
  EXPECT_NE(error_of([&] { product.sum().backward(); }).find(modified), std::string::npos);
}

// out= into a tensor that holds summands, factors or candidates.
void write_into_partial(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = numbered({7, 3}) - 8;
  using Write = std::function<void(const at::Tensor& x, at::Tensor& out)>;
  const std::map<std::string, Write> writes = {
      {"mul", [](const auto& x, auto& out) { at::mul_out(out, x, x); }},
      {"mul by a number", [](const auto& x, auto& out) { at::mul_out(out, x, 3); }},
      {"add", [](const auto& x, auto& out) { at::add_out(out, x, x, 2); }},
      {"add a number", [](const auto& x, auto& out) { at::add_out(out, x, 5, 1); }},
      {"neg", [](const auto& x, auto& out) { at::neg_out(out, x); }},
      {"maximum", [](const auto& x, auto& out) { at::maximum_out(out, x, at::neg(x)); }},
      {"addcmul", [](const auto& x, auto& out) { at::addcmul_out(out, x, x, x); }},
      {"sum", [](const auto& x, auto& out) { at::sum_out(out, x, Lengths{0}, true); }},
      {"mm", [](const auto& x, auto& out) { at::mm_out(out, x.t(), x); }},
      {"index_select",
       [](const auto& x, auto& out) {
         at::index_select_out(out, x, 0, at::tensor({6, 0}, at::kLong));
       }},
  };
  for (const PartialOp op :
       {PartialOp::kSum, PartialOp::kAvg, PartialOp::kProduct, PartialOp::kMin, PartialOp::kMax}) {
    for (const Placement& from : {Replicate(), Shard(0), Shard(1), Partial(), Partial(op)}) {
      const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {from}, {7, 3}));
      // part_of() makes neither candidates nor factors: for these each rank begins with the whole.
      const bool is_sum = from.is_partial() && from.op() == PartialOp::kSum;
      const bool is_product = from.is_partial() && from.op() == PartialOp::kProduct;
      at::Tensor part = from.is_partial() && !is_sum ? whole.clone() : part_of(whole, *spec);
      if (is_product && world.rank > 0) part.fill_(1);
      const ShardTensor x(part, spec);
      for (const auto& [name, write] : writes) {
        SCOPED_TRACE(fmt::format("{} of {} into {}", name, to_string(from),
                                 to_string(Placement::partial(op))));
        at::Tensor expected = at::empty({0}, at::kDouble);
        write(whole, expected);
        const SpecPtr into = make_spec(
            mesh, ShardLayout::split({world.size}, {Partial(op)}, expected.sizes().vec()));
        at::Tensor out =
            ShardTensor(at::full(expected.sizes(), world.rank + 2.0, at::kDouble), into);
        write(x, out);
        EXPECT_TRUE(at::allclose(ShardTensor(out).full_tensor(), expected, 1e-13, 1e-13))
            << ShardTensor(out) << expected;
      }
    }
  }
}

// Views that change places with sums only.
void view_partial(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor pairs = numbered({5, 2}) - 4;
  const auto partial = [&](const at::Tensor& part, PartialOp op) -> at::Tensor {
    const SpecPtr spec =
        make_spec(mesh, ShardLayout::split({world.size}, {Partial(op)}, part.sizes().vec()));
    return ShardTensor(part, spec);
  };
  const at::Tensor own = pairs * (world.rank + 1) - 3;
  const at::Tensor own_complex = at::view_as_complex(own);
  for (const PartialOp op : {PartialOp::kSum, PartialOp::kAvg}) {
    at::Tensor sum = ShardTensor(partial(own, op)).full_tensor();
    EXPECT_TRUE(at::equal(ShardTensor(at::_neg_view(partial(own, op))).full_tensor(), -sum));
    EXPECT_TRUE(at::equal(ShardTensor(at::view_as_complex(partial(own, op))).full_tensor(),
                          at::view_as_complex(sum)));
    EXPECT_TRUE(
        at::equal(ShardTensor(at::view_as_real(partial(own_complex, op))).full_tensor(), sum));
    EXPECT_TRUE(
        at::equal(ShardTensor(at::imag(partial(own_complex, op))).full_tensor(), sum.select(1, 1)));
  }
  const char* unreduced = "is not reduced yet";
  for (const PartialOp op : {PartialOp::kProduct, PartialOp::kMin, PartialOp::kMax}) {
    expect_error_on_all_ranks([&] { at::_neg_view(partial(own, op)); }, unreduced);
    expect_error_on_all_ranks([&] { at::view_as_complex(partial(own, op)); }, unreduced);
    expect_error_on_all_ranks([&] { at::view_as_real(partial(own_complex, op)); }, unreduced);
  }
  // Writes arrive through the parts of a conjugate view.
  const at::Tensor written =
      ShardTensor::from_local(own_complex.clone(), mesh->device_mesh(), Placements{Shard(0)});
  at::real(written.conj()).mul_(2);
  at::imag(written.conj()).add_(1);
  EXPECT_TRUE(at::equal(at::view_as_real(ShardTensor(written).to_local()),
                        own * at::tensor({2, 1}, at::kDouble) - at::tensor({0, 1}, at::kDouble)));
  // The conjugate of a product is the product of conjugates.
  const at::Tensor product = partial(own_complex, PartialOp::kProduct);
  at::Tensor expected = at::ones({5}, at::kComplexDouble);
  for (int64_t rank = 0; rank < world.size; ++rank) {
    expected = expected * at::view_as_complex(pairs * (rank + 1) - 3);
  }
  EXPECT_TRUE(
      at::allclose(at::view_as_real(ShardTensor(at::conj(product)).full_tensor().resolve_conj()),
                   at::view_as_real(expected.conj().resolve_conj())));
}

// Kernels of some devices leave a result empty that only the CPU's backward pass reads.
std::tuple<at::Tensor, at::Tensor> doubled_and_empty(const at::Tensor& x) {
  return {x * 2, at::empty({0}, x.options())};
}

TORCH_LIBRARY(shard_tensor_test, m) { m.def("doubled_and_empty(Tensor x) -> (Tensor, Tensor)"); }
TORCH_LIBRARY_IMPL(shard_tensor_test, CPU, m) { m.impl("doubled_and_empty", doubled_and_empty); }

void take_an_empty_second_result(const JoinedWorld& world) {
  const char* name = "shard_tensor_test::doubled_and_empty";
  static const bool kOnce = [&] {
    register_operator({"tests", name, HandlerLevel::kBelowAutograd, {"any", "", ""}},
                      torch::CppFunction::makeFromBoxedFunctor(
                          std::make_unique<PointwiseKernel>(name, Linearity::kNone)));
    return true;
  }();
  EXPECT_TRUE(kOnce);
  const Rows rows(world);
  const auto call = c10::Dispatcher::singleton()
                        .findSchemaOrThrow(name, "")
                        .typed<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&)>();
  const auto [doubled, empty] = call.call(rows.tensor());
  expect_whole(doubled, rows.whole * 2);
  EXPECT_EQ(empty.sizes(), rows.whole.sizes());
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
  // Composite operators come whole here, with handlers and without; so do lists of tensors.
  EXPECT_TRUE(at::equal(local_of(at::square(y)), local_of(y) * local_of(y)));
  expect_whole(at::stack({y, y}), at::stack({rows.whole, rows.whole}));
  const at::Tensor weight = at::ones({2, 3}, at::kDouble);
  expect_whole(at::linear(y, weight), at::linear(rows.whole, weight));
  expect_whole(at::layer_norm(y, {3}), at::layer_norm(rows.whole, {3}));
  at::Tensor written = at::add(y, y);
  written.index_put_({written > 1}, at::scalar_tensor(0.5, at::kDouble));
  const at::Tensor twice = rows.whole * 2;
  expect_whole(written, at::where(twice > 1, 0.5, twice));
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

  // What was computed from a plain leaf has a plain gradient, and so has the leaf, whatever comes
  // first.
  for (const bool plain_first : {false, true}) {
    leaf.mutable_grad() = at::Tensor();
    const at::Tensor plain = (leaf * leaf).sum();
    const at::Tensor loss = at::mul(y, leaf * 1).sum() + at::mul(y, leaf).sum();
    (plain_first ? plain + loss : loss + plain).backward();
    ASSERT_FALSE(is_shard_tensor(leaf.grad()));
    EXPECT_TRUE(at::equal(leaf.grad(), rows.whole.sum(0) * 2 + 4));
  }
  // An announcement ends with its leaf, and does not hinder other hooks.
  leaf.mutable_grad() = at::Tensor();
  const unsigned doubled = leaf.register_hook([](const at::Tensor& g) { return g * 2; });
  at::mul(y, leaf).sum().backward();
  EXPECT_TRUE(at::equal(leaf.grad(), rows.whole.sum(0) * 2));
  leaf.remove_hook(doubled);
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(
      leaf.getIntrusivePtr());
  leaf = at::Tensor();
  EXPECT_TRUE(weak.expired());
  EXPECT_EQ(weak.weak_use_count(), 1) << "somebody remembers the leaf";

  // from_local keeps the history of the local tensor.
  at::Tensor part = part_of(rows.whole, *rows.spec).requires_grad_();
  const ShardTensor z =
      ShardTensor::from_local(part * 3, rows.mesh->device_mesh(), Placements{Shard(0)});
  at::mul(z, z).sum().backward();
  EXPECT_TRUE(at::equal(part.grad(), part.detach() * 18));

  // Each summand of a sum gets the gradient, each of a mean gets its share of it; from_local
  // followed by to_local changes nothing.
  for (const PartialOp op : {PartialOp::kSum, PartialOp::kAvg}) {
    const double ranks = op == PartialOp::kAvg ? world.size : 1;
    const auto from = [&](const at::Tensor& local) {
      return ShardTensor::from_local(local, rows.mesh->device_mesh(), Placements{Partial(op)});
    };
    at::Tensor own = (rows.whole * (world.rank + 1)).requires_grad_();
    at::Tensor reduced = rows.whole * (world.size * (world.size + 1) / 2.0) / ranks;
    const ShardTensor mean = from(own);
    at::mul(mean, mean).sum().backward();
    EXPECT_TRUE(at::allclose(own.grad(), reduced * 2 / ranks, 1e-14, 1e-14));
    own.mutable_grad().reset();
    at::mul(from(own).to_local(), rows.whole).sum().backward();
    EXPECT_TRUE(at::allclose(own.grad(), rows.whole, 1e-14, 1e-14));
  }
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
  const Lengths pieces(static_cast<size_t>(world.size), 7);
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
  std::vector<at::Tensor> mixed = {world.rank == 0 ? x.detach() : at::ones({7, 3})};
  refuses("c10d's allreduce on rank 0", [&] { world.manager.world()->allreduce(mixed)->wait(); });
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
                                ShardingShapes::chunk(), Lengths{9, 3});
    EXPECT_EQ(x.spec()->layout(), ShardLayout::chunk({world.size}, {Shard(0)}, {9, 3}));
    std::vector<Lengths> shapes(static_cast<size_t>(world.size), Lengths{0, 3});
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
      "has 2 axes");
  const auto from = [&](const at::Tensor& local, const Placements& placements,
                        const std::optional<Lengths>& shape = std::nullopt) {
    return ShardTensor::from_local(local, mesh, placements, ShardingShapes::infer(), shape);
  };
  refuses([&] { from(at::ones({2, 3}), {Shard(2)}); }, "out of range");
  refuses([&] { from(at::ones({2, 3}), {Shard(0), Shard(1)}); }, "axes");
  refuses([&] { from(at::ones({2, 3}), {Shard(0)}, Lengths{2, 3}); }, "is said to be [2, 3]");
  refuses([&] { from(at::ones({2, 3}, first ? at::kFloat : at::kDouble), {Shard(0)}); }, "dtype");
  refuses(
      [&] {
        from(first ? at::ones({2}) : at::ones({2, 3}), {Shard(0)});
      },
      "number of dimensions");
  refuses([&] { from(at::ones({2, 3}), {first ? Shard(0) : Shard(1)}); }, "placements");
  refuses(
      [&] {
        from(at::ones({2, 3}), first ? Placements{Shard(0)} : Placements{Shard(0), Shard(1)});
      },
      "other placements");
  refuses(
      [&] {
        from(at::ones({2, 3}), first ? Placements{Shard(0), Shard(1)} : Placements{Shard(0)});
      },
      "other placements");
  refuses(
      [&] {
        from(at::ones({2, 3}), first ? Placements{} : Placements{Replicate()});
      },
      "other placements");
  refuses([&] { from(first ? at::Tensor() : at::ones({2, 3}), {Shard(0)}); }, "it is undefined");
  refuses([&] { from(first ? at::ones({2, 3}) : at::Tensor(), {Shard(0)}); }, "it is undefined");
  refuses(
      [&] {
        from(first ? at::Tensor(x) : at::ones({2, 3}), {Shard(0)});
      },
      "it is a ShardTensor");
  refuses(
      [&] {
        from(at::ones({2, 3}), {Shard(1)}, first ? std::optional<Lengths>({2, 3}) : std::nullopt);
      },
      "is said to be [2, 3] at mesh coordinate [0]");
  for (const PartialOp op : {PartialOp::kProduct, PartialOp::kMin, PartialOp::kMax}) {
    refuses(
        [&] {
          from(at::ones({2, 3}).requires_grad_(), {Partial(op)});
        },
        "depends on the other ranks");
    EXPECT_FALSE(from(at::ones({2, 3}), {Partial(op)}).requires_grad());
  }
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
                                      ShardingShapes::chunk(), Lengths{9, 3});
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

// Every operator that takes several tensors.
void refuse_two_meshes(const JoinedWorld& world) {
  const Rows rows(world, {4, 4});
  const ShardMesh::Ptr other = mesh_of_world({1, world.size});
  const at::Tensor a = rows.tensor();
  const at::Tensor b(ShardTensor(
      part_of(rows.whole, *make_spec(other, ShardLayout::split(other->shape(),
                                                               {Replicate(), Shard(0)}, {4, 4}))),
      make_spec(other, ShardLayout::split(other->shape(), {Replicate(), Shard(0)}, {4, 4}))));
  const at::Tensor row = b.sum(0);
  const at::Tensor index_a = at::zeros_like(a, at::kLong);
  const at::Tensor index_b = at::zeros_like(b, at::kLong);
  const at::Tensor places = at::tensor({0, 1}, at::kLong);
  at::Tensor out = a.clone();
  using List = c10::List<std::optional<at::Tensor>>;
  const std::map<std::string, std::function<void()>> calls = {
      {"add", [&] { at::add(a, b); }},
      {"mul_", [&] { a.clone().mul_(b); }},
      {"mul, out", [&] { at::mul_out(out, b, b); }},
      {"copy_", [&] { a.clone().copy_(b); }},
      {"where", [&] { at::where(a > 0, a, b); }},
      {"masked_fill", [&] { a.masked_fill(b > 0, 1); }},
      {"masked_select", [&] { a.masked_select(b > 0); }},
      {"cat",
       [&] {
         at::cat({a, b});
       }},
      {"stack",
       [&] {
         at::stack({a, b});
       }},
      {"mm", [&] { at::mm(a, b); }},
      {"linear", [&] { at::linear(a, a, row); }},
      {"einsum",
       [&] {
         at::einsum("ij,jk->ik", {a, b});
       }},
      {"layer_norm", [&] { at::layer_norm(a, {4}, row); }},
      {"batch_norm", [&] { at::batch_norm(a, row, {}, {}, {}, true, 0.1, 1e-5, false); }},
      {"mse_loss", [&] { at::mse_loss(a, b); }},
      {"gather", [&] { at::gather(a, 0, index_b); }},
      {"scatter", [&] { at::scatter(a, 0, index_a, b); }},
      {"index_select", [&] { at::index_select(a, 0, index_b.select(0, 0)); }},
      {"embedding", [&] { at::embedding(a, index_b); }},
      {"index", [&] { at::index(a, List({index_b})); }},
      {"index_put, values", [&] { at::index_put(a, List({places}), b.narrow(0, 0, 2)); }},
      {"index_put, indices",
       [&] { at::index_put(a, List({index_b}), at::ones({1}, at::kDouble)); }},
      {"index_put_, tensor", [&] { b.clone().index_put_(List({index_a}), a.select(0, 0)); }},
      {"_foreach_add",
       [&] { at::_foreach_add(std::vector<at::Tensor>{a}, std::vector<at::Tensor>{b}); }},
      {"bucketize", [&] { at::bucketize(a, row); }},
      {"searchsorted, sorter", [&] { at::searchsorted(a, a, false, false, {}, index_b); }},
      {"isin", [&] { at::isin(a, b); }},
      {"index_reduce", [&] { at::index_reduce(a, 0, places, b, "prod"); }},
      {"put (no rule)", [&] { at::put(a, index_b, b); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    expect_error_on_all_ranks(call, "got sharded tensors of two meshes");
  }
}

// A gradient that is Partial, and lies otherwise in the memory of each rank: z[:, i, :] = i + 1.
void reduce_the_gradients_of_any_leaf(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor z = at::arange(1, 5, at::kDouble).view({1, 4, 1}).expand({3, 4, 5});
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({world.size}, {Shard(1)}, {3, 4, 5}));
  const SpecPtr whole = replicated_spec(mesh, {3, 5});
  const at::Tensor ones = at::ones({3, 5}, at::kDouble);
  const auto leaf = [&](int64_t form) -> at::Tensor {
    if (form == 0) return ShardTensor::from_local(ones, mesh->device_mesh()).requires_grad_();
    if (form == 1) return at::ones_like(ShardTensor(ones, whole)).requires_grad_();
    at::Tensor tensor = form == 2 ? ShardTensor(ones, whole).detach() : ShardTensor(ones, whole);
    tensor.set_requires_grad(true);
    return tensor;
  };
  for (int64_t form = 0; form < 4; ++form) {
    std::vector<at::Tensor> leaves;
    for (int64_t i = 0; i < 4; ++i) leaves.push_back(leaf(form));
    for (int64_t pass = 1; pass <= 2; ++pass) {
      (at::stack(leaves, 1) * ShardTensor(part_of(z, *cut), cut)).sum().backward();
      for (int64_t i = 0; i < 4; ++i) {
        const at::Tensor& gradient = leaves[static_cast<size_t>(i)].grad();
        EXPECT_TRUE(spec_of(gradient)->placements()[0].is_replicate());
        EXPECT_TRUE(at::equal(local_of(gradient), at::full({3, 5}, pass * (i + 1), at::kDouble)))
            << "leaf " << i << " of form " << form << ", pass " << pass;
      }
    }
  }
}

// Initialised in place, then with a hook of the program's own, and used in two passes.
void keep_the_leaf_hook_beside_others(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {6, 3}));
  const at::Tensor whole = numbered({6, 3});
  const ShardTensor x(part_of(whole, *cut), cut);
  const ShardTensor leaf(at::zeros({3}, at::kDouble), replicated_spec(mesh, {3}), true);
  {
    const at::NoGradGuard no_grad;
    at::Tensor(leaf).fill_(1);
  }
  int calls = 0;
  const auto handle = leaf.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    EXPECT_FALSE(spec_of(gradient)->has_partial()) << "ours comes first";
    return gradient * 2;
  });
  for (int pass = 1; pass <= 2; ++pass) {
    at::mul(x, leaf).sum().backward();
    EXPECT_FALSE(spec_of(leaf.grad())->has_partial());
    expect_whole(leaf.grad(), whole.sum(0) * 2 * pass);
  }
  EXPECT_EQ(calls, 2);
  leaf.remove_hook(handle);
  at::mul(x, leaf).sum().backward();
  expect_whole(leaf.grad(), whole.sum(0) * 5);
}

// Two operands of one local sum get one gradient: each keeps memory of its own.
void accumulate_in_memory_of_their_own(const JoinedWorld& world) {
  const Rows rows(world);
  const ShardTensor a = rows.tensor(true);
  const ShardTensor b = rows.tensor(true);
  const ShardTensor c = rows.tensor(true);
  const ShardTensor d = rows.tensor(true);
  for (int pass = 1; pass <= 3; ++pass) {
    const at::Tensor sum = from_local(a.to_local() + b.to_local(), rows.spec);
    const at::Tensor moved =
        c.redistribute({}, Placements{Replicate()}) + d.redistribute({}, Placements{Replicate()});
    ((sum + moved) * ShardTensor(part_of(rows.whole, *rows.spec), rows.spec)).sum().backward();
    for (const ShardTensor& leaf : {a, b, c, d}) expect_whole(leaf.grad(), rows.whole * pass);
  }
  const ShardTensor z(at::complex(local_of(a).detach(), local_of(b).detach()), rows.spec, true);
  at::view_as_real(z).sum().backward();
  EXPECT_TRUE(at::equal(local_of(z.grad()),
                        at::complex(at::ones_like(local_of(a)), at::ones_like(local_of(a)))));
}

// Queries, keys and values whose rows are no runs of memory: views keep the order of their base.
void attend_to_views(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  Draw draw(5);
  const at::Tensor whole = draw.normal({1, 2, 6, 8});
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({world.size}, {Shard(3)}, {1, 2, 6, 8}));
  const at::Tensor view = ShardTensor(part_of(whole, *cut), cut).transpose(2, 3);
  const at::Tensor plain = whole.transpose(2, 3).contiguous();
  const at::Tensor is = at::scaled_dot_product_attention(view, view, view);
  EXPECT_TRUE(at::allclose(ShardTensor(is).full_tensor(),
                           at::scaled_dot_product_attention(plain, plain, plain), 0, 1e-12));
}

// A write through a view of a Partial, or into a Partial that has views.
void fill_a_partial(const JoinedWorld& world) {
  const Rows rows(world);
  at::Tensor sum = rows.tensor().sum(0);
  ASSERT_TRUE(spec_of(sum)->has_partial());
  const at::Tensor view = sum.slice(0, 1, 3);
  at::manual_seed(7);
  sum.uniform_(2, 3);
  const at::Tensor filled = ShardTensor(sum).full_tensor();
  EXPECT_TRUE(filled.ge(2).logical_and(filled.le(3)).all().item<bool>());
  expect_whole(view, filled.slice(0, 1, 3));
  sum.select(0, 0).uniform_(4, 5);
  const at::Tensor first = ShardTensor(sum).full_tensor();
  EXPECT_TRUE(first[0].item<double>() >= 4 && first[0].item<double>() <= 5);
  EXPECT_TRUE(at::equal(first.slice(0, 1, 3), filled.slice(0, 1, 3)));
}

void give_a_partial_strides_that_all_ranks_have(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor whole = numbered({4, 5, 6});
  const SpecPtr cut = make_spec(mesh, ShardLayout::split({world.size}, {Shard(1)}, {4, 5, 6}));
  at::Tensor part = part_of(whole, *cut);
  if (world.rank % 2 == 1) part = part.transpose(0, 2).contiguous().transpose(0, 2);
  const ShardTensor x(part, cut);
  const auto check = [](const at::Tensor& tensor, const at::Tensor& plain) {
    EXPECT_TRUE(spec_of(tensor)->has_partial());
    EXPECT_EQ(tensor.strides(), plain.strides());
    expect_whole(tensor, plain);
  };
  check(x.select(1, 0), whole.select(1, 0));
  check(x.select(1, 4).t(), whole.select(1, 4).t());
  check(x.select(1, 1).slice(1, 0, 6, 2), whole.select(1, 1).slice(1, 0, 6, 2));
  check(x.select(1, 2).unsqueeze(1).expand({4, 3, 6}),
        whole.select(1, 2).unsqueeze(1).expand({4, 3, 6}));
  check(x.select(1, 3).detach().select(0, 1), whole.select(1, 3).select(0, 1));
  // A summand in another order on one rank: a copy, since the strides say contiguous.
  const SpecPtr summed = make_spec(mesh, ShardLayout::split({world.size}, {Partial()}, {4, 5, 6}));
  at::Tensor summand = world.rank == 0 ? whole : at::zeros_like(whole);
  if (world.rank % 2 == 1) summand = summand.transpose(0, 2).contiguous().transpose(0, 2);
  const ShardTensor partial(summand, summed);
  check(partial, whole);
  check(partial.view({20, 6}), whole.view({20, 6}));
  check(partial.permute({2, 0, 1}), whole.permute({2, 0, 1}));
  EXPECT_NE(error_of([&] {
              partial.permute({2, 0, 1}).view({24, 5});
            }).find("view size"),
            std::string::npos);
  // A plain operand lies as it will on each rank.
  at::Tensor plain = at::ones({4, 5, 6}, at::kDouble);
  if (world.rank % 2 == 1) plain = plain.transpose(0, 2).contiguous().transpose(0, 2);
  EXPECT_TRUE((plain * ShardTensor(part_of(whole, *cut), cut)).is_contiguous());
  // Views share memory: a write through one is seen in the tensor.
  at::Tensor written = x.clone();
  written.select(1, 3).t().mul_(2);
  at::Tensor expected = whole.clone();
  expected.select(1, 3).t().mul_(2);
  expect_whole(written, expected);
}

// Each rank's memory lies in an order of its own.
void move_from_any_order(const JoinedWorld& world) {
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const Lengths shape = {3, 4, 5};
  const at::Tensor whole = numbered(shape);
  for (int64_t from = 0; from < 3; ++from) {
    for (int64_t to = 0; to < 3; ++to) {
      for (int64_t other = 0; other < 3; ++other) {
        const SpecPtr spec =
            make_spec(mesh, ShardLayout::split({world.size}, {Shard(from)}, shape));
        at::Tensor part = part_of(whole, *spec);
        if (world.rank % 2 == 1) {
          part = part.transpose(from, other).clone(at::MemoryFormat::Contiguous);
          part = part.transpose(from, other);
        }
        const ShardTensor x(part, spec);
        expect_whole(x, whole);
        expect_whole(x.redistribute({}, Placements{Shard(to)}), whole);
      }
    }
  }
}

// Its reset() makes its sharded parameter, as LibTorch's own modules make theirs.
struct CutModule : torch::nn::Cloneable<CutModule> {
  explicit CutModule(const Rows& of) : rows(&of) { reset(); }
  void reset() override {
    weight = register_parameter(
        "weight", ShardTensor(part_of(rows->whole, *rows->spec).clone(), rows->spec, true));
  }

  const Rows* rows;
  at::Tensor weight;
};

void clone_a_module(const JoinedWorld& world) {
  const Rows rows(world);
  CutModule module(rows);
  {
    const at::NoGradGuard no_grad;
    module.weight.add_(1);
  }
  const std::shared_ptr<torch::nn::Module> copy = module.clone();
  const at::Tensor copied = copy->parameters()[0];
  EXPECT_TRUE(copied.requires_grad());
  expect_whole(copied.detach(), rows.whole + 1);
  const at::NoGradGuard no_grad;
  module.weight.add_(1);
  expect_whole(copied.detach(), rows.whole + 1);
}

void use_tensors() {
  const JoinedWorld world;
  look_like_a_tensor(world);
  copy_and_detach(world);
  plain_times_sharded_number(world);
  hand_out_an_alias(world);
  write_in_place(world);
  write_into_partial(world);
  view_partial(world);
  take_an_empty_second_result(world);
  go_backward(world);
  promote_plain_tensors(world);
  make_from_local(world);
  reduce_the_gradients_of_any_leaf(world);
  keep_the_leaf_hook_beside_others(world);
  accumulate_in_memory_of_their_own(world);
  fill_a_partial(world);
  attend_to_views(world);
  give_a_partial_strides_that_all_ranks_have(world);
  move_from_any_order(world);
  clone_a_module(world);
}

void refuse_all() {
  const JoinedWorld world;
  refuse_collectives(world);
  refuse_wrong_calls(world);
  refuse_two_meshes(world);
}

const bool kRegistered = register_rank_function("use sharded tensors", use_tensors) &&
                         register_rank_function("refuse sharded tensors", refuse_all);

TEST(ShardTensorTest, IsATensorOfTheGlobalShapeWithoutItsMemory) {
  run_in_worlds("use sharded tensors", {1, 2, 4}, {"ucx"});
}

// LibTorch 2.15 gives its fake tensors the key that our operators are registered on.
TEST(ShardTensorTest, ATensorWithTheKeyOfOperatorsIsNotSharded) {
  const at::Tensor plain = at::ones({2});
  at::Tensor fake = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(plain.storage()), plain.key_set().add(kOperatorKey), plain.dtype());
  EXPECT_FALSE(is_shard_tensor(fake));
  EXPECT_EQ(shard_impl(fake), nullptr);
}

TEST(ShardTensorTest, WrongCallsAreErrorsOnAllRanks) {
  run_in_worlds("refuse sharded tensors", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
