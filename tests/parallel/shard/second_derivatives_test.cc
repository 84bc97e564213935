// Derivatives of gradients (create_graph): those of sharded tensors are LibTorch's of the whole
// ones, for every family of the table but attention, which raises a NotImplementedError.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ATen/ATen.h"
#include "fmt/format.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/shard/drawn_cases.h"
#include "tests/parallel/shard/drawn_layouts.h"
#include "tests/parallel/support/rank_processes.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

// LibTorch's flash kernel has no second derivative either; the last test has the cut sequence. The
// family "pointwise" has those pointwise rows of the table that models differentiate twice.
bool is_left_out(const OperatorCase& drawn) {
  return drawn.name == "scaled_dot_product_attention" || drawn.name.starts_with("rows");
}

struct Derivatives {
  Tensors first;   // of the outputs, for each input
  Tensors second;  // of the first ones, for each input and then each cotangent
};

Tensors recorded(const Tensors& tensors) {
  Tensors some;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad()) some.push_back(tensor);
  }
  return some;
}

// `seed`: the cotangent of the first derivative of input i.
Derivatives derivatives(const Tensors& outputs, const Tensors& inputs, const Tensors& cotangents,
                        const std::function<at::Tensor(const at::Tensor&, size_t)>& seed) {
  Derivatives result;
  result.first = torch::autograd::grad(outputs, inputs, cotangents, true, true, true);
  Tensors seeds;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& first = result.first[i];
    if (first.defined() && first.requires_grad()) seeds.push_back(seed(first, i));
  }
  Tensors targets = inputs;
  targets.insert(targets.end(), cotangents.begin(), cotangents.end());
  if (seeds.empty()) {
    result.second.resize(targets.size());
  } else {
    result.second =
        torch::autograd::grad(recorded(result.first), targets, seeds, std::nullopt, false, true);
  }
  return result;
}

at::Tensor placed_leaf(const at::Tensor& whole, const SpecPtr& spec) {
  return ShardTensor(part_of(whole, *spec), spec, true);
}

// Undefined: zero.
void expect_same(const at::Tensor& is, const at::Tensor& should, const std::string& what) {
  if (!is.defined() && !should.defined()) return;
  const at::Tensor a = is.defined() ? whole_of(is) : at::zeros_like(should);
  const at::Tensor b = should.defined() ? should.detach() : at::zeros_like(a);
  EXPECT_EQ(difference(a, b, Equality::kRounding), "") << what;
}

struct Counts {
  int64_t compared = 0;
  int64_t without = 0;  // LibTorch has no derivative
};

void check(const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh, c10::Device device,
           Counts& counts) {
  if (!drawn.differentiable || is_left_out(drawn)) return;
  for (const at::Tensor& input : drawn.inputs) {
    if (at::isFloatingType(input.scalar_type()) && input.scalar_type() != at::kDouble) return;
  }
  const PlacedCase placed(drawn, draw, mesh, device);
  SCOPED_TRACE(placed.said);
  const Tensors expected = drawn.call(placed.whole);
  const Tensors got = drawn.call(placed.sharded);
  Tensors whole_outputs;
  Tensors whole_cotangents;
  Tensors outputs;
  Tensors cotangents;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!expected[i].requires_grad() || expected[i].scalar_type() != at::kDouble) continue;
    const at::Tensor cotangent = draw.normal(expected[i].sizes()).to(device);
    whole_outputs.push_back(expected[i]);
    whole_cotangents.push_back(cotangent.clone().requires_grad_());
    outputs.push_back(got[i]);
    const SpecPtr spec = is_shard_tensor(got[i]) && draw.chance(0.5)
                             ? gradient_spec(spec_of(got[i]))
                             : replicated_spec(mesh, cotangent.sizes());
    cotangents.push_back(is_shard_tensor(got[i]) ? placed_leaf(cotangent, spec)
                                                 : cotangent.clone().requires_grad_());
    // The engine adds the cotangent of a plain result to sharded ones.
    if (!is_shard_tensor(got[i])) announce_plain_leaf(cotangents.back());
  }
  if (outputs.empty()) return;
  const Tensors whole_inputs = recorded(placed.whole);
  const Tensors inputs = recorded(placed.sharded);
  Tensors seeds;
  for (const at::Tensor& input : whole_inputs) seeds.push_back(draw.normal(input.sizes()));
  const bool as_gradient = draw.chance(0.5);

  Derivatives whole;
  try {
    whole = derivatives(whole_outputs, whole_inputs, whole_cotangents,
                        [&](const at::Tensor&, size_t i) { return seeds[i].to(device); });
  } catch (const c10::Error&) {
    ++counts.without;
    return;
  }
  const Derivatives sharded =
      derivatives(outputs, inputs, cotangents, [&](const at::Tensor& first, size_t i) {
        if (!is_shard_tensor(first)) return seeds[i].to(device);
        const SpecPtr spec =
            as_gradient ? gradient_spec(spec_of(first)) : replicated_spec(mesh, seeds[i].sizes());
        return wrap(part_of(seeds[i].to(device), *spec), spec);
      });
  ++counts.compared;
  for (size_t i = 0; i < inputs.size(); ++i) {
    expect_same(sharded.first[i], whole.first[i], fmt::format("gradient {}", i));
  }
  for (size_t i = 0; i < whole.second.size(); ++i) {
    expect_same(sharded.second[i], whole.second[i],
                i < inputs.size()
                    ? fmt::format("second derivative, input {}", i)
                    : fmt::format("second derivative, cotangent {}", i - inputs.size()));
  }
}

const bool kDrawn = register_rank_function("second derivatives", [] {
  Counts counts;
  for_each_drawn_case(std::getenv("MESHRUN_TEST_WHOLE") != nullptr ? 200 : 15,
                      [&](const OperatorCase& drawn, Draw& draw, const ShardMesh::Ptr& mesh,
                          c10::Device device) { check(drawn, draw, mesh, device, counts); });
  EXPECT_GT(counts.compared, 3 * counts.without);
  if (std::getenv("MESHRUN_SHARD_VERBOSE") != nullptr) {
    fmt::print(stderr, "{} compared, {} without a derivative in LibTorch\n", counts.compared,
               counts.without);
  }
});

class SecondDerivativesTest : public testing::TestWithParam<int> {};

TEST_P(SecondDerivativesTest, EqualLibTorchsOnTheWholeTensors) {
  run_drawn_cases("second derivatives", env_ranks(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Worlds, SecondDerivativesTest, testing::Values(1, 2, 3, 4));

// Small cases that draws may miss, with placements of every operand given.
struct GivenCase {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Placements> placements;
  std::function<at::Tensor(const Tensors&)> call;
};

const std::vector<GivenCase>& given_cases() {
  static const auto* cases = new std::vector<GivenCase>{
      {"a linear layer of summands",
       {{5, 4}, {3, 4}},
       {{Partial()}, {Replicate()}},
       [](const Tensors& x) { return at::linear(x[0], x[1]).pow(3); }},
      {"a linear layer with a weight of summands",
       {{5, 4}, {3, 4}},
       {{Replicate()}, {Partial()}},
       [](const Tensors& x) { return at::linear(x[0], x[1]).pow(3); }},
      {"summands times a tensor",
       {{5, 4}, {5, 4}},
       {{Partial()}, {Replicate()}},
       [](const Tensors& x) { return (x[0] * x[1]).pow(2); }},
      {"summands by einsum",
       {{5, 4}, {4, 3}, {3}},
       {{Partial()}, {Replicate()}, {Replicate()}},
       [](const Tensors& x) {
         return at::einsum("ij,jk,k->i", {x[0], x[1], x[2]}).pow(2);
       }},
      {"averages times a tensor",
       {{5, 4}, {5, 4}},
       {{Partial(PartialOp::kAvg)}, {Replicate()}},
       [](const Tensors& x) { return (x[0] * x[1]).pow(2); }},
      {"a contraction of a cut dimension",
       {{5, 7}, {7, 3}},
       {{Shard(1)}, {Shard(0)}},
       [](const Tensors& x) { return at::matmul(x[0], x[1]).pow(2); }},
      {"a sum of a cut dimension",
       {{7, 3}},
       {{Shard(0)}},
       [](const Tensors& x) { return x[0].pow(3).sum(0).pow(2); }},
      {"a row of a cut dimension",
       {{7, 3}},
       {{Shard(0)}},
       [](const Tensors& x) { return x[0].pow(2).select(0, 4) * x[0].slice(0, 1, 6, 2); }},
      {"a norm where a rank has zeros alone",
       {{6, 2}},
       {{Shard(0)}},
       [](const Tensors& x) {
         // Rows of the last rank are zero.
         const at::Tensor rows = at::arange(6, at::kDouble).lt(2).to(at::kDouble).unsqueeze(1);
         return (x[0] * rows).norm().pow(3);
       }},
      {"signs, whose slope is zero",
       {{7, 3}, {7, 3}},
       {{Shard(0)}, {Shard(0)}},
       [](const Tensors& x) { return at::l1_loss(x[0], x[1]) * (x[0].abs() * x[1]).sum(); }},
      {"a broadcast row",
       {{1, 4}, {6, 4}},
       {{Replicate()}, {Shard(0)}},
       [](const Tensors& x) {
         return at::mse_loss(x[0].expand({6, 4}) * x[1], x[1].pow(2));
       }},
      {"products into rows, each sent to its owner",
       {{7, 3}, {5, 3}},
       {{Shard(0)}, {Shard(0)}},
       [](const Tensors& x) {
         const at::Tensor rows = at::tensor({6, 0, 2, 6, 1}, at::kLong);
         return at::index_reduce(x[0], 0, rows, x[1], "prod").pow(2);
       }},
      {"products into rows from a whole source",
       {{7, 3}, {5, 3}},
       {{Shard(0)}, {Replicate()}},
       [](const Tensors& x) {
         const at::Tensor rows = at::tensor({6, 0, 2, 6, 1}, at::kLong);
         return at::index_reduce(x[0], 0, rows, x[1], "prod", false).pow(2);
       }},
      {"the largest of rows, where one that another rank has is NaN",
       {{7, 3}, {5, 3}},
       {{Shard(0)}, {Replicate()}},
       [](const Tensors& x) {
         const at::Tensor rows = at::tensor({6, 0, 2, 6, 1}, at::kLong).view({5, 1});
         at::Tensor beside = at::zeros({5, 3}, at::kDouble);
         beside[1][2] = std::nan("");
         return at::scatter_reduce(x[0], 0, rows.expand({5, 3}), x[1] + beside, "amax").pow(2);
       }},
      // LibTorch before 2.15 has second derivatives of distances by products alone.
      {"distances of rows, by products",
       {{7, 3}, {5, 3}},
       {{Shard(0)}, {Shard(0)}},
       [](const Tensors& x) { return at::cdist(x[0], x[1], 2, 1).pow(3); }},
      {"distances of pieces of coordinates, by products",
       {{3, 7}, {2, 7}},
       {{Shard(1)}, {Shard(1)}},
       [](const Tensors& x) { return at::cdist(x[0], x[1], 2, 1).pow(3); }},
      {"there and back",
       {{7, 6}},
       {{Shard(0)}},
       [](const Tensors& x) {
         const at::Tensor y = x[0].pow(2);
         if (!is_shard_tensor(y)) return (y.sum(1) * y.sum(1)).exp() * 1e-3;
         const SpecPtr other = target_spec(spec_of(y), {Shard(1)});
         const at::Tensor sum = redistribute(y, other).sum(1);  // Partial
         const at::Tensor cut = redistribute(sum, target_spec(spec_of(sum), {Shard(0)}));
         return (cut * sum).exp() * 1e-3;
       }},
      {"out, and in again", {{7, 6}}, {{Shard(0)}}, [](const Tensors& x) {
         if (!is_shard_tensor(x[0])) return x[0].pow(3).sum(0).sin();
         const SpecPtr& spec = spec_of(x[0]);
         const at::Tensor own = to_local(x[0]).pow(3).sum(0);
         return from_local(
                    own, make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                                        {Partial()}, {{{}, {6}}})))
             .sin();
       }}};
  return *cases;
}

const bool kGiven = register_rank_function("given second derivatives", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  for (const GivenCase& given : given_cases()) {
    SCOPED_TRACE(given.name);
    Draw draw(11);
    Tensors whole;
    Tensors sharded;
    for (size_t i = 0; i < given.shapes.size(); ++i) {
      const at::Tensor values = draw.normal(given.shapes[i]);
      whole.push_back(values.clone().requires_grad_());
      const SpecPtr spec =
          make_spec(mesh, ShardLayout::split(mesh->shape(), given.placements[i], given.shapes[i]));
      // An average has a part for each rank.
      const bool is_average = given.placements[i][0] == Partial(PartialOp::kAvg);
      sharded.push_back(is_average ? ShardTensor(values.clone(), spec, true)
                                   : ShardTensor(part_of(values, *spec), spec, true));
    }
    const at::Tensor expected = given.call(whole);
    const at::Tensor got = given.call(sharded);
    EXPECT_EQ(difference(whole_of(got), expected.detach(), Equality::kRounding), "");
    Tensors seeds;
    for (const at::Tensor& input : whole) seeds.push_back(draw.normal(input.sizes()));
    const at::Tensor cotangent = draw.normal(expected.sizes());
    const Derivatives of_whole =
        derivatives({expected}, whole, {cotangent.clone().requires_grad_()},
                    [&](const at::Tensor&, size_t i) { return seeds[i]; });
    const Derivatives of_parts = derivatives(
        {got}, sharded, {placed_leaf(cotangent, replicated_spec(mesh, cotangent.sizes()))},
        [&](const at::Tensor& first, size_t i) {
          const SpecPtr spec = gradient_spec(spec_of(first));
          return wrap(part_of(seeds[i], *spec), spec);
        });
    for (size_t i = 0; i < whole.size(); ++i) {
      expect_same(of_parts.first[i], of_whole.first[i], fmt::format("gradient {}", i));
    }
    for (size_t i = 0; i < of_whole.second.size(); ++i) {
      expect_same(of_parts.second[i], of_whole.second[i], fmt::format("second derivative {}", i));
    }
  }
});

TEST(SecondDerivativesTest, FollowSummandsAndRedistributions) {
  run_in_worlds("given second derivatives", {1, 2, 3, 4}, {"ucx"});
}

// A loss of gradients alone, whose cotangents have no history of their own.
const bool kRefused = register_rank_function("refused second derivatives", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = mesh_of_world({world.size});
  Draw draw(3);
  const SpecPtr spec = make_spec(mesh, ShardLayout::split(mesh->shape(), {Shard(2)}, {1, 2, 6, 4}));
  const at::Tensor x = placed_leaf(draw.normal({1, 2, 6, 4}), spec);
  const at::Tensor y = at::scaled_dot_product_attention(x, x, x);
  const at::Tensor gradient = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
  EXPECT_NE(error_of([&] {
              torch::autograd::grad({gradient.square().sum()}, {x});
            }).find("scaled_dot_product_attention"),
            std::string::npos);
});

TEST(SecondDerivativesTest, OfAttentionOverACutSequenceRaise) {
  run_in_worlds("refused second derivatives", {2, 3}, {"ucx"});
}

}  // namespace
}  // namespace meshrun
