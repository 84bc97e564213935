// Under autocast, operators on sharded tensors have LibTorch's dtypes and, within bfloat16's
// rounding, its values: the families of cases/ in float32, and calls where a handler takes over a
// composite operator. Every function handler has a stated policy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "parallel/shard/dispatch/cast_policy.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_cases.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

class Autocast {
 public:
  explicit Autocast(c10::DeviceType device) : device_(device) {
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
};

at::Tensor in_float32(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor.to(at::kFloat) : tensor;
}

// Within a few roundings to bfloat16, relative to the size of the whole or to 1.
void expect_near(const at::Tensor& is, const at::Tensor& should, const std::string& what) {
  ASSERT_EQ(is.sizes(), should.sizes()) << what;
  EXPECT_EQ(is.scalar_type(), should.scalar_type()) << what;
  if (is.numel() == 0) return;
  const at::ScalarType wide =
      at::isComplexType(should.scalar_type()) ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = at::nan_to_num(at::view_as_real(is.to(at::kComplexDouble)));
  const at::Tensor b = at::nan_to_num(at::view_as_real(should.to(at::kComplexDouble)));
  EXPECT_EQ(is.to(wide).isfinite().sum().item<int64_t>(),
            should.to(wide).isfinite().sum().item<int64_t>())
      << what;
  // Infinities are the largest numbers by now.
  const at::Tensor largest = at::maximum(a.abs(), b.abs()) > 1e300;
  const double apart = (a - b).masked_fill(largest, 0).norm().item<double>();
  const double size = b.masked_fill(largest, 0).norm().item<double>();
  EXPECT_LE(apart, 4e-2 * std::max(size, 1.0)) << what;
}

// Steps of optimizers multiply roundings.
bool takes_no_autocast(const OperatorCase& drawn) {
  for (const char* word : {"SGD", "Adam", "Adagrad", "foreach", "autocast"}) {
    if (drawn.name.find(word) != std::string::npos) return true;
  }
  return false;
}

void check(const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh, c10::Device device) {
  if (takes_no_autocast(drawn)) return;
  OperatorCase narrow = drawn;
  for (at::Tensor& input : narrow.inputs) input = in_float32(input);
  const PlacedCase placed(narrow, draw, mesh, device);
  SCOPED_TRACE(placed.said);
  const auto cast = [&](const Tensors& inputs) {
    const Autocast on(device.type());
    return drawn.call(inputs);
  };
  Tensors expected;
  try {
    expected = cast(placed.whole);
  } catch (const c10::Error&) {
    return;  // what LibTorch itself refuses
  }
  const Tensors got = cast(placed.sharded);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    expect_near(whole_of(got[i]), expected[i].detach(), "result " + std::to_string(i));
  }
}

const bool kFamilies = register_rank_function("operators under autocast", [] {
  for_each_drawn_case(std::getenv("MESHRUN_TEST_WHOLE") != nullptr ? 200 : 20, check);
});

class AutocastOperatorsTest : public testing::TestWithParam<int> {};

TEST_P(AutocastOperatorsTest, HaveLibTorchsDtypesAndValues) {
  run_drawn_cases("operators under autocast", env_ranks(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Worlds, AutocastOperatorsTest, testing::Values(1, 2, 3, 4));

ShardTensor sharded(const at::Tensor& whole, const ShardMesh::Ptr& mesh,
                    const Placements& placements, bool requires_grad = false) {
  const SpecPtr spec =
      make_spec(mesh, ShardLayout::split(mesh->shape(), placements, whole.sizes().vec()));
  return ShardTensor(part_of(whole, *spec), spec, requires_grad);
}

void check_composites() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  at::manual_seed(3);
  const at::Tensor scores = at::randn({7, 5}).to(at::kBFloat16);
  const at::Tensor target = at::arange(7) % 5;
  const at::Tensor tokens = at::randn({2, 2, 9, 4});
  const at::Tensor field = at::randn({2, 6, 8}).to(at::kBFloat16);
  struct Call {
    const char* name;
    const at::Tensor& whole;
    Placements placements;
    std::function<at::Tensor(const at::Tensor&)> call;
    at::ScalarType dtype;
  };
  const Call calls[] = {
      {"cross_entropy",
       scores,
       {Shard(0)},
       [&](const at::Tensor& x) { return at::cross_entropy_loss(x, target); },
       at::kFloat},
      {"nll_loss",
       scores,
       {Shard(0)},
       [&](const at::Tensor& x) { return at::nll_loss_nd(x, target); },
       at::kFloat},
      {"attention",
       tokens,
       {Shard(2)},
       [&](const at::Tensor& x) { return at::scaled_dot_product_attention(x, x, x); },
       at::kBFloat16},
      {"attention, one mask",
       tokens,
       {Shard(2)},
       [&](const at::Tensor& x) {
         return at::scaled_dot_product_attention(x, x, x, at::ones({9, 9}) / 4);
       },
       at::kBFloat16},
      {"attention of two dtypes",
       tokens,
       {Shard(2)},
       [&](const at::Tensor& x) {
         return at::scaled_dot_product_attention(x, x.to(at::kBFloat16), x);
       },
       at::kBFloat16},
      {"rfft2",
       field,
       {Shard(1)},
       [&](const at::Tensor& x) { return at::fft_rfft2(x); },
       at::kComplexFloat},
      {"rfft2, whole planes",
       field,
       {Shard(0)},
       [&](const at::Tensor& x) { return at::fft_rfft2(x); },
       at::kComplexFloat},
      // No sum of products: autocast casts nothing.
      {"einsum without a sum",
       tokens,
       {Shard(2)},
       [&](const at::Tensor& x) {
         return at::einsum("abcd,abcd->abcd", {x, x});
       },
       at::kFloat},
      {"einsum",
       tokens,
       {Shard(2)},
       [&](const at::Tensor& x) {
         return at::einsum("abcd,abed->abce", {x, x});
       },
       at::kBFloat16},
      // With one element LibTorch casts nothing; some ranks have one, and none.
      {"tensordot",
       at::ones({1, world.size + 1}),
       {Shard(1)},
       [&](const at::Tensor& x) {
         return at::tensordot(at::ones({1, 1}), x, {1}, {0});
       },
       at::kBFloat16},
      {"tensordot of one element",
       at::ones({1, 3}),
       {Shard(1)},
       [&](const at::Tensor& x) {
         return at::tensordot(x, at::ones({3, 1}), {1}, {0});
       },
       at::kFloat},
      {"mean", scores, {Shard(0)}, [&](const at::Tensor& x) { return x.mean(0); }, at::kBFloat16},
  };
  const Autocast on(c10::DeviceType::CPU);
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    const at::Tensor expected = call.call(call.whole);
    EXPECT_EQ(expected.scalar_type(), call.dtype);
    expect_near(whole_of(call.call(sharded(call.whole, mesh, call.placements))), expected,
                call.name);
  }
}

// Ranks add a weight's gradient in float32: bfloat16 holds the first rank's 256 and the others' 1,
// and neither 257 nor 259.
void add_gradients_in_float32() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  // Each row is 1, but the first rank's, which is 256.
  const SpecPtr rows =
      make_spec(mesh, ShardLayout::split({world.size}, {Shard(0)}, {world.size, 1}));
  const ShardTensor x(at::full({1, 1}, world.rank == 0 ? 256.0F : 1.0F), rows);
  const auto gradient = [&](const at::Tensor& weight) {
    {
      const Autocast on(c10::DeviceType::CPU);
      at::linear(x, weight).sum().backward();
    }
    EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
    return whole_of(weight.grad()).item<double>();
  };
  const double exact = 256.0 + world.size - 1;
  at::Tensor announced = at::ones({1, 1}).requires_grad_();
  announce_plain_leaf(announced);
  EXPECT_EQ(gradient(announced), exact);
  EXPECT_EQ(gradient(at::ones({1, 1}).requires_grad_()), exact);
  EXPECT_EQ(gradient(sharded(at::ones({1, 1}), mesh, {Replicate()}, true)), exact);
}

void refuse_mixed_attention() {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  const at::Tensor x = sharded(at::ones({1, 2, 6, 4}), mesh, {Shard(2)});
  const at::Tensor half = x.to(at::kHalf);
  const auto refuses = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    expect_error_on_all_ranks([&] { at::scaled_dot_product_attention(q, k, v); },
                              "Expected query, key, and value to have the same dtype");
  };
  refuses(x, half, x);
  refuses(half, x, x);
  refuses(x, x, half);
  expect_error_on_all_ranks(
      [&] {
        at::scaled_dot_product_attention(x, x, x, at::ones({6, 6}, at::kHalf));
      },
      "Expected attn_mask dtype");
}

const bool kRegistered =
    register_rank_function("composites under autocast", check_composites) &&
    register_rank_function("gradients under autocast", add_gradients_in_float32) &&
    register_rank_function("attention of mixed dtypes", refuse_mixed_attention);

TEST(AutocastCompositesTest, FollowThePoliciesOfTheirOperators) {
  run_in_worlds("composites under autocast", {1, 2, 3}, {"ucx"});
}

TEST(AutocastCompositesTest, RanksAddGradientsInFloat32) {
  run_in_worlds("gradients under autocast", {1, 2, 4}, {"ucx"});
}

TEST(AutocastCompositesTest, AttentionOfMixedDtypesIsOneErrorOnAllRanks) {
  run_in_worlds("attention of mixed dtypes", {2}, {"ucx"});
}

TEST(CastPolicyTest, EveryFunctionHandlerHasAStatedPolicy) {
  std::vector<std::string> handlers;
  for (const OperatorRow& row : registered_operators()) {
    if (row.level != HandlerLevel::kAboveAutograd) continue;
    handlers.push_back(row.name);
    EXPECT_NE(cast_policies_of(row.name), nullptr)
        << row.name << ": say in dispatch/cast_policy.cc what autocast does to its operands";
  }
  for (const std::string& name : operators_with_cast_policies()) {
    EXPECT_NE(std::find(handlers.begin(), handlers.end(), name), handlers.end())
        << name << " has a policy and no function handler";
  }
}

// What the table says of LibTorch is so.
TEST(CastPolicyTest, LibTorchHasThePoliciesThatAreSaidToBeIts) {
  for (const std::string& name : operators_with_cast_policies()) {
    const CastPolicies& policies = *cast_policies_of(name);
    const c10::OperatorHandle op = operator_named(name);
    if (policies.cpu == CastPolicy::kLibTorchs) {
      EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU)) << name;
    }
    if (policies.cuda == CastPolicy::kLibTorchs) {
      EXPECT_TRUE(op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA)) << name;
    }
  }
}

}  // namespace
}  // namespace meshrun
