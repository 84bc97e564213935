// Operators without a rule: gathered with one warning that names them and the bytes, or an error;
// what they write goes back to where it lay. Operators on the matrices of a batch leave the batch
// cut. Plain tensors beside sharded ones: warned of where asked for, and plain leaves refused.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "c10/util/Exception.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/library.h"

namespace meshrun {
namespace {

// An operator of this test's own: no family will ever have a rule for it.
at::Tensor interval(const at::Tensor& self, const at::Tensor& bounds) {
  return at::bucketize(self, bounds);
}
at::Tensor& interval_out(const at::Tensor& self, const at::Tensor& bounds, at::Tensor& out) {
  return at::bucketize_out(out, self, bounds);
}

TORCH_LIBRARY(fallback_test, library) {
  library.def("interval(Tensor self, Tensor bounds) -> Tensor");
  library.def("interval.out(Tensor self, Tensor bounds, *, Tensor(a!) out) -> Tensor(a!)");
  library.impl("interval", torch::dispatch(c10::DispatchKey::CPU, &interval));
  library.impl("interval.out", torch::dispatch(c10::DispatchKey::CPU, &interval_out));
}

c10::OperatorHandle own_operator(const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow("fallback_test::interval", overload);
}
at::Tensor call_interval(const at::Tensor& self, const at::Tensor& bounds) {
  return own_operator("").typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(self,
                                                                                         bounds);
}

class CapturedWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

// [7, 3] of float64, 168 bytes, cut along the rows by all ranks.
struct CutRows {
  explicit CutRows(const JoinedWorld& world)
      : whole(at::arange(21, at::kDouble).view({7, 3})),
        spec(make_spec(mesh_of_world({world.size}),
                       ShardLayout::split({world.size}, {Shard(0)}, {7, 3}))) {}

  at::Tensor tensor() const { return ShardTensor(part_of(whole, *spec), spec); }

  const at::Tensor whole;
  const SpecPtr spec;
};

void expect_replicated(const at::Tensor& is, const at::Tensor& should) {
  ASSERT_TRUE(is_shard_tensor(is));
  EXPECT_TRUE(spec_of(is)->is_replicated());
  EXPECT_TRUE(at::equal(local_of(is), should));
}

void fall_back() {
  const JoinedWorld world;
  const CutRows rows(world);
  const at::Tensor x = rows.tensor();
  const at::Tensor bounds = at::tensor({2.0, 8.0, 15.0}, at::kDouble);

  CapturedWarnings warnings;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    expect_replicated(call_interval(x, bounds), at::bucketize(rows.whole, bounds));
    ASSERT_EQ(warnings.texts.size(), 1U);
    EXPECT_NE(warnings.texts[0].find("fallback_test::interval has no rule"), std::string::npos);
    EXPECT_NE(warnings.texts[0].find("168 bytes"), std::string::npos);
    // One an operator, not one a call.
    call_interval(x, bounds);
    EXPECT_EQ(warnings.texts.size(), 1U);

    // Several results.
    const auto [values, places] = at::mode(x, 0);
    const auto [whole_values, whole_places] = at::mode(rows.whole, 0);
    expect_replicated(values, whole_values);
    expect_replicated(places, whole_places);
    EXPECT_EQ(warnings.texts.size(), 2U);
  }

  // In place and out=: the layout and the memory stay.
  const at::Tensor index = at::tensor({0, 20, 4}, at::kLong);
  const at::Tensor source = at::tensor({-1.0, -2.0, -3.0}, at::kDouble);
  at::Tensor written = rows.tensor();
  const void* memory = local_of(written).const_data_ptr();
  written.put_(index, source);
  EXPECT_EQ(spec_of(written)->placements(), Placements{Shard(0)});
  EXPECT_EQ(local_of(written).const_data_ptr(), memory);
  EXPECT_TRUE(
      at::equal(ShardTensor(written).full_tensor(), rows.whole.clone().put_(index, source)));
  at::Tensor out = at::zeros_like(x, at::kLong);
  own_operator("out").typed<at::Tensor&(const at::Tensor&, const at::Tensor&, at::Tensor&)>().call(
      x, bounds, out);
  EXPECT_EQ(spec_of(out)->placements(), Placements{Shard(0)});
  EXPECT_TRUE(at::equal(ShardTensor(out).full_tensor(), at::bucketize(rows.whole, bounds)));

  // Gradients lie where their tensors do.
  at::Tensor leaf = ShardTensor(part_of(rows.whole, *rows.spec), rows.spec, true);
  at::take(leaf, index).sum().backward();
  ASSERT_TRUE(is_shard_tensor(leaf.grad()));
  EXPECT_EQ(spec_of(leaf.grad())->placements(), Placements{Shard(0)});
  EXPECT_TRUE(
      at::equal(ShardTensor(leaf.grad()).full_tensor(),
                at::zeros({7, 3}, at::kDouble).put_(index, at::ones({3}, at::kDouble), true)));
}

void fall_back_strictly() {
  const JoinedWorld world;
  const CutRows rows(world);
  const at::Tensor x = rows.tensor();
  const at::Tensor bounds = at::tensor({2.0, 8.0}, at::kDouble);
  EXPECT_THROW(call_interval(x, bounds), MissingShardRuleError);
  expect_error_on_all_ranks([&] { call_interval(x, bounds); },
                            "fallback_test::interval has no rule for sharded tensors, and "
                            "MESHRUN_SHARD_STRICT=1 forbids to gather its arguments (168 bytes)");
  // Composite operators are taken apart into operators that have rules.
  EXPECT_TRUE(at::equal(ShardTensor(at::square(x)).full_tensor(), at::square(rows.whole)));
}

void warn_of_plain_tensors() {
  const JoinedWorld world;
  const CutRows rows(world);
  const at::Tensor x = rows.tensor();
  const at::Tensor row = at::ones({3}, at::kDouble);
  CapturedWarnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  at::add(x, row);
  EXPECT_TRUE(warnings.texts.empty());
  const PromotionModeGuard warns(PromotionMode::kWarn);
  at::add(x, at::scalar_tensor(1.0, at::kDouble));
  EXPECT_TRUE(warnings.texts.empty()) << "a tensor without dimensions is Replicate in any mode";
  at::add(x, row);
  ASSERT_FALSE(warnings.texts.empty());
  EXPECT_NE(warnings.texts[0].find("a plain tensor of [3] as Replicate"), std::string::npos);
}

// A plain leaf beside a sharded tensor, in operators of every kind: refused, and once announced its
// gradient is plain and whole.
void check_plain_leaves() {
  const JoinedWorld world;
  const CutRows rows(world);
  const at::Tensor x = rows.tensor();
  struct Call {
    const char* name;
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> call;
  };
  const Call calls[] = {
      {"add", [](const auto& a, const auto& b) { return at::add(a, b.sum(0)) * b[0]; }},
      {"mm", [](const auto& a, const auto& b) { return at::mm(a, b); }},
      {"cat",
       [](const auto& a, const auto& b) {
         return at::cat({a, b}) * 3;
       }},
      {"_cdist_forward",
       [](const auto& a, const auto& b) { return at::_cdist_forward(a, b, 1.0, {}); }},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    const at::Tensor whole = (at::arange(9, at::kDouble).view({3, 3}) / 7).requires_grad_();
    call.call(rows.whole, whole).square().sum().backward();
    at::Tensor leaf = whole.detach().clone().requires_grad_();
    if (std::string(call.name) != "add") {
      expect_error_on_all_ranks([&] { call.call(x, leaf); }, "announce the leaf");
    }
    // What was computed from a leaf has a gradient that becomes plain by itself.
    call.call(x, leaf * 1).square().sum().backward();
    EXPECT_FALSE(is_shard_tensor(leaf.grad()));
    EXPECT_TRUE(at::allclose(leaf.grad(), whole.grad(), 1e-10, 1e-10));
    leaf.mutable_grad() = at::Tensor();
    announce_plain_leaf(leaf);
    call.call(x, leaf).square().sum().backward();
    ASSERT_FALSE(is_shard_tensor(leaf.grad()));
    EXPECT_TRUE(at::allclose(leaf.grad(), whole.grad(), 1e-10, 1e-10));
  }
  // PromotionMode decides for all of them, function handlers too.
  const PromotionModeGuard disabled(PromotionMode::kDisabled);
  const at::Tensor plain = at::ones({3, 3}, at::kDouble);
  for (const Call& call : calls) {
    expect_error_on_all_ranks([&] { call.call(x, plain); }, "PromotionMode is disabled");
  }
  expect_error_on_all_ranks([&] { at::linear(x, plain); }, "PromotionMode is disabled");
}

// Operators on the matrices of a batch: the batch stays cut, with LibTorch's values and gradients.
void keep_batches_cut() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  at::manual_seed(5);
  const at::Tensor root = at::randn({4, 3, 3}, at::kDouble);
  const at::Tensor whole = at::matmul(root, root.mT()) + 3 * at::eye(3, at::kDouble);
  const SpecPtr spec = make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {4, 3, 3}));
  const at::Tensor right = at::randn({3, 2}, at::kDouble);
  struct Call {
    const char* name;
    std::function<at::Tensor(const at::Tensor&)> call;
  };
  const Call calls[] = {
      {"inverse", [](const auto& a) { return at::linalg_inv(a); }},
      {"cholesky", [](const auto& a) { return at::linalg_cholesky(a); }},
      {"determinant", [](const auto& a) { return at::linalg_det(a); }},
      {"determinant of transposes", [](const auto& a) { return at::linalg_det(a.mT() * 2); }},
      {"eigenvalues", [](const auto& a) { return at::linalg_eigvalsh(a); }},
      {"solve", [&](const auto& a) { return at::linalg_solve(a, right); }},
      // Not vectors, though two ranks have batches of two.
      {"solve for a small matrix",
       [&](const auto& a) {
         return at::linalg_solve(a.narrow(1, 0, 2).narrow(2, 0, 2), right.narrow(0, 0, 2));
       }},
      {"solve for vectors", [](const auto& a) { return at::linalg_solve(a, a.select(2, 0)); }},
      {"distances", [&](const auto& a) { return at::cdist(a, right.t() * at::ones({3}), 1.0); }},
      {"Fourier transform", [](const auto& a) { return at::view_as_real(at::fft_fft(a)); }},
      {"median", [](const auto& a) { return std::get<0>(at::median(a, 2)); }},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    const at::Tensor leaf = whole.clone().requires_grad_();
    const at::Tensor expected = call.call(leaf);
    const ShardTensor x(part_of(whole, *spec), spec, true);
    CapturedWarnings warnings;
    at::Tensor got;
    {
      const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
      got = call.call(x);
    }
    EXPECT_TRUE(warnings.texts.empty()) << warnings.texts.front();
    ASSERT_TRUE(is_shard_tensor(got));
    EXPECT_EQ(spec_of(got)->placements(), Placements{Shard(0)});
    EXPECT_TRUE(at::allclose(ShardTensor(got).full_tensor(), expected, 1e-10, 1e-10));
    expected.square().sum().backward();
    got.square().sum().backward();
    ASSERT_TRUE(is_shard_tensor(x.grad()));
    EXPECT_EQ(spec_of(x.grad())->placements(), Placements{Shard(0)});
    EXPECT_TRUE(at::allclose(ShardTensor(x.grad()).full_tensor(), leaf.grad(), 1e-9, 1e-9));
  }
  // A singular matrix of one rank is an error on all.
  const at::Tensor singular = whole.clone();
  singular[0].zero_();
  const ShardTensor y(part_of(singular, *spec), spec);
  expect_error_on_all_ranks([&] { at::linalg_inv(y); }, "singular");
}

// The manager's mesh where none is said.
void take_the_managers_mesh() {
  const JoinedWorld world;
  const DeviceMesh& mesh = world.manager.initialize_mesh({1, world.size}, {"dp", "domain"});
  const at::Tensor whole = at::arange(21, at::kDouble).view({7, 3});
  const ShardTensor copies = ShardTensor::from_local(whole);
  EXPECT_EQ(copies.spec()->mesh(), ShardMesh::of(mesh));
  EXPECT_EQ(copies.placements(), (Placements{Replicate(), Replicate()}));
  const SpecPtr spec = make_spec(
      ShardMesh::of(mesh), ShardLayout::split({1, world.size}, {Replicate(), Shard(0)}, {7, 3}));
  const ShardTensor rows = ShardTensor::from_local(part_of(whole, *spec), std::nullopt,
                                                   Placements{Replicate(), Shard(0)});
  EXPECT_EQ(rows.spec()->layout(), spec->layout());
  EXPECT_TRUE(at::equal(rows.full_tensor(), whole));

  // Lists of placements stand for themselves.
  const ShardTensor listed =
      ShardTensor::from_local(part_of(whole, *spec), mesh, {Replicate(), Shard(0)});
  EXPECT_EQ(listed.spec()->layout(), spec->layout());
  const ShardTensor columns = listed.redistribute(mesh, {Replicate(), Shard(1)});
  EXPECT_EQ(columns.placements(), (Placements{Replicate(), Shard(1)}));
  EXPECT_TRUE(at::equal(columns.full_tensor({Replicate(), Replicate()}), whole));
  EXPECT_TRUE(at::equal(columns.to_local({Replicate(), Shard(1)}), local_of(columns)));
  const ShardMesh::Ptr line = mesh_of_world({world.size});
  const ShardTensor one =
      ShardTensor::from_local(part_of(whole, *spec), line->device_mesh(), {Shard(0)});
  EXPECT_EQ(one.placements(), Placements{Shard(0)});
  EXPECT_TRUE(at::equal(one.full_tensor({}), whole));
}

const bool kRegistered = register_rank_function("fall back", fall_back) &&
                         register_rank_function("fall back strictly", fall_back_strictly) &&
                         register_rank_function("warn of plain tensors", warn_of_plain_tensors) &&
                         register_rank_function("plain leaves", check_plain_leaves) &&
                         register_rank_function("batches stay cut", keep_batches_cut) &&
                         register_rank_function("take the manager's mesh", take_the_managers_mesh);

TEST(FallbackTest, WithoutARuleArgumentsAreGatheredWithOneWarning) {
  run_in_worlds("fall back", {2, 3}, {"ucx"});
}

TEST(FallbackTest, StrictlyItIsAnErrorOnAllRanks) {
  std::vector<Variables> ranks = env_ranks(2);
  for (Variables& rank : ranks) rank["MESHRUN_SHARD_STRICT"] = "1";
  expect_success(run_ranks("fall back strictly", ranks));
}

TEST(FallbackTest, PlainTensorsAreWarnedOfWhereAskedFor) {
  run_in_worlds("warn of plain tensors", {2}, {"ucx"});
}

TEST(FallbackTest, APlainLeafIsAnnouncedOrAnErrorInEveryOperator) {
  run_in_worlds("plain leaves", {1, 2, 3}, {"ucx"});
}

TEST(FallbackTest, BatchesOfMatricesStayCut) {
  run_in_worlds("batches stay cut", {1, 2, 3}, {"ucx"});
}

TEST(FallbackTest, AMeshThatIsNotSaidIsTheManagers) {
  run_in_worlds("take the manager's mesh", {2}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
