#include <gtest/gtest.h>

#include <cstdlib>

#include "ATen/ATen.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/shard/drawn_cases.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

void check(const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh, c10::Device device) {
  const PlacedCase placed(drawn, draw, mesh, device);
  const Tensors& whole = placed.whole;
  const Tensors& sharded = placed.sharded;
  const Equality equality = placed.any_partial ? Equality::kRounding : drawn.equality;
  SCOPED_TRACE(placed.said);
  const Tensors expected = drawn.call(whole);
  const Tensors got = drawn.call(sharded);
  ASSERT_EQ(got.size(), expected.size());
  Tensors expected_outputs;
  Tensors expected_cotangents;
  Tensors outputs;
  Tensors cotangents;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].sizes(), expected[i].sizes()) << "result " << i;
    EXPECT_EQ(difference(whole_of(got[i]), expected[i].detach(), equality), "") << "result " << i;
    EXPECT_EQ(got[i].requires_grad(), expected[i].requires_grad()) << "result " << i;
    if (!expected[i].requires_grad() || !got[i].requires_grad()) continue;
    // Some outputs are not used.
    if (got.size() > 1 && draw.chance(0.3)) continue;
    const at::Tensor cotangent = draw.normal(expected[i].sizes()).to(expected[i].options());
    expected_outputs.push_back(expected[i]);
    expected_cotangents.push_back(cotangent);
    outputs.push_back(got[i]);
    const SpecPtr spec = is_shard_tensor(got[i]) && draw.chance(0.5)
                             ? gradient_spec(spec_of(got[i]))
                             : replicated_spec(mesh, cotangent.sizes());
    cotangents.push_back(is_shard_tensor(got[i]) ? wrap(part_of(cotangent, *spec), spec)
                                                 : cotangent);
  }
  if (outputs.empty()) return;
  // Gradients add up over passes, and no two share memory.
  const int passes = draw.chance(0.3) ? 2 : 1;
  for (int pass = 1; pass <= passes; ++pass) {
    const bool keeps_graph = pass < passes;
    torch::autograd::backward(expected_outputs, expected_cotangents, keeps_graph);
    torch::autograd::backward(outputs, cotangents, keeps_graph);
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    const at::Tensor& should = whole[i].grad();
    if (!sharded[i].requires_grad()) continue;
    const at::Tensor& is = sharded[i].grad();
    // Undefined is zero: LibTorch's formulas say so of whole tensors alone.
    if (!should.defined()) {
      EXPECT_TRUE(!is.defined() || whole_of(is).eq(0).all().item<bool>()) << "gradient " << i;
      continue;
    }
    ASSERT_TRUE(is.defined()) << "gradient " << i;
    EXPECT_TRUE(is_shard_tensor(is)) << "gradient " << i;
    if (is_shard_tensor(is)) {
      EXPECT_EQ(to_string(spec_of(is)->placements()),
                to_string(gradient_spec(spec_of(sharded[i]))->placements()))
          << "gradient " << i;
    }
    EXPECT_EQ(difference(whole_of(is), should, Equality::kRounding), "") << "gradient " << i;
  }
}

const bool kRegistered = register_rank_function("operators", [] {
  // Draws for each of some fifteen families in four worlds: 2,400 and 51,000 cases in all.
  for_each_drawn_case(std::getenv("MESHRUN_TEST_WHOLE") != nullptr ? 850 : 40, check);
});

class OperatorsTest : public testing::TestWithParam<int> {};

TEST_P(OperatorsTest, EqualLibTorchsOnTheWholeTensors) {
  run_drawn_cases("operators", env_ranks(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Worlds, OperatorsTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace meshrun
