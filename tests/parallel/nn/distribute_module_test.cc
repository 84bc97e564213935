// Modules on meshes, in real rank processes, against one rank that sees everything.
#include "parallel/nn/distribute_module.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <vector>

#include "parallel/nn/activation_checkpoint.h"
#include "parallel/nn/shared_module.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/nn/on_mesh.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/tensor_oracle.h"

namespace meshrun {
namespace {

using at::Tensor;

// Parameters that meet sharded activations in every way: in a product, along the dimension that is
// cut, as a scalar, twice; one that is not used.
struct NetworkImpl : torch::nn::Module {
  NetworkImpl() {
    at::manual_seed(3);
    linear = register_module("linear", torch::nn::Linear(3, 4));
    position = register_parameter("position", at::randn({1, 5, 4}, at::kDouble));
    factor = register_parameter("factor", at::randn({}, at::kDouble));
    unused = register_parameter("unused", at::randn({2}, at::kDouble));
    frozen = register_parameter("frozen", at::randn({4}, at::kDouble), false);
    to(at::kDouble);
  }
  // [B, 5, 3] -> a scalar
  Tensor loss(const Tensor& x, bool twice = false) {
    const auto layer = [&](const Tensor& in) { return (linear(in) + position).tanh(); };
    const Tensor h = twice ? checkpoint(layer, x) : layer(x);
    const Tensor y = (h * factor + position) * frozen;
    return y.square().sum() / y.numel();
  }
  torch::nn::Linear linear = nullptr;
  Tensor position, factor, unused, frozen;
};
TORCH_MODULE(Network);

Tensor data(int64_t batch) {
  at::manual_seed(5);
  return at::randn({batch, 5, 3}, at::kDouble);
}

void expect_near(const Network& actual, const Network& wanted) {
  const auto theirs = wanted->named_parameters();
  for (const auto& item : actual->named_parameters()) {
    const Tensor& gradient = item.value().grad();
    const Tensor& expected = theirs[item.key()].grad();
    ASSERT_EQ(gradient.defined(), expected.defined()) << item.key();
    if (!expected.defined()) continue;
    EXPECT_FALSE(is_shard_tensor(gradient));
    EXPECT_LE(relative_l2(gradient, expected), 1e-12) << item.key();
  }
}

const bool kGradients = register_rank_function("distributed_gradients", [] {
  const JoinedWorld world;
  const TestMesh test = mesh_of(world);
  for (const double megabytes : {25.0, 1e-5}) {
    Network network, alone;
    if (world.rank != 0) {
      const at::NoGradGuard no_grad;
      for (Tensor& parameter : network->parameters()) parameter.add_(1);  // rank 0's count
    }
    distribute_module(*network, test.mesh, {.bucket_cap_mb = megabytes});
    const Tensor whole = data(7);
    const ShardTensor x = cut(whole, test.mesh, test.placements(0, 1));
    for (int pass = 0; pass < 2; ++pass) {  // gradients accumulate
      const Tensor loss = network->loss(x);
      const Tensor wanted = alone->loss(whole);
      EXPECT_LE(relative_l2(ShardTensor(loss).full_tensor(), wanted), 1e-13);
      loss.backward();
      wanted.backward();
      expect_near(network, alone);
    }
    // Nested backward passes.
    network->zero_grad();
    alone->zero_grad();
    network->loss(x, true).backward();
    alone->loss(whole).backward();
    expect_near(network, alone);
    // Not accumulated.
    network->zero_grad();
    const Tensor gradient = torch::autograd::grad({network->loss(x)}, {network->linear->weight})[0];
    EXPECT_LE(relative_l2(gradient, alone->linear->weight.grad()), 1e-12);
    EXPECT_FALSE(network->linear->weight.grad().defined());
  }
});

TEST(DistributeModuleTest, GradientsAreThoseOfTheGlobalLoss) {
  run_in_worlds("distributed_gradients", {1, 2, 3, 4}, {"ucx"});
}

// A penalty on the weights, plain and equal on all ranks, on either side of the sharded loss; then
// one on the weights' gradient.
const bool kPenalty = register_rank_function("distributed_penalty", [] {
  const JoinedWorld world;
  const TestMesh test = mesh_of(world);
  Network network, alone;
  distribute_module(*network, test.mesh);
  const Tensor whole = data(7);
  const ShardTensor x = cut(whole, test.mesh, test.placements(0, 1));
  const auto penalty = [](const Network& of) {
    return of->linear->weight.square().sum() + (of->position.sum() * of->factor).exp() * 0.1;
  };
  for (const bool comes_first : {false, true}) {
    const auto total = [&](Network& of, const Tensor& input) {
      // Recorded first, differentiated last.
      if (comes_first) {
        const Tensor plain = penalty(of);
        return plain + of->loss(input);
      }
      const Tensor loss = of->loss(input);
      return loss + penalty(of);
    };
    network->zero_grad();
    alone->zero_grad();
    for (int pass = 0; pass < 2; ++pass) {
      total(network, x).backward();
      total(alone, whole).backward();
      expect_near(network, alone);
    }
    network->zero_grad();
    alone->zero_grad();
    const auto of_gradient = [&](Network& of, const Tensor& input) {
      const std::vector<Tensor> gradients = torch::autograd::grad(
          {total(of, input)}, {of->linear->weight, of->position, of->factor}, {}, true, true);
      return gradients[0].square().sum() + gradients[1].pow(3).sum() * gradients[2];
    };
    of_gradient(network, x).backward();
    of_gradient(alone, whole).backward();
    expect_near(network, alone);
  }
});

TEST(DistributeModuleTest, PenaltiesOnWeightsStandBesideTheShardedLoss) {
  run_in_worlds("distributed_penalty", {1, 2, 3, 4}, {"ucx"});
}

// Says that the second tensor has no gradient, which autograd calls undefined.
struct Ignores : torch::autograd::Function<Ignores> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x, const Tensor&) {
    return x * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], Tensor()};
  }
};

const bool kIgnored = register_rank_function("distributed_ignored", [] {
  const JoinedWorld world;
  const TestMesh test = mesh_of(world);
  Network network;
  distribute_module(*network, test.mesh);
  const ShardTensor x = cut(data(7), test.mesh, test.placements(0, 1));
  const ShardTensor leaf(x.to_local(), x.spec(), true);
  Ignores::apply(network->loss(x), network->unused).backward();
  EXPECT_FALSE(network->unused.grad().defined());
  EXPECT_TRUE(network->factor.grad().defined());
  Ignores::apply(leaf.sum(), leaf).backward();
  EXPECT_TRUE(at::equal(ShardTensor(leaf.grad()).to_local(), at::ones_like(x.to_local())));
});

TEST(DistributeModuleTest, AnUndefinedGradientChangesNothing) {
  run_in_worlds("distributed_ignored", {1, 2, 4}, {"ucx"});
}

// A module built with sharded parameters: the weight of the first layer is cut by rows, that of the
// second by columns; the factor between them is plain.
struct CutNetworkImpl : torch::nn::Module {
  using Make = std::function<Tensor(const Tensor& whole, int64_t dim)>;

  explicit CutNetworkImpl(const Make& make) {
    at::manual_seed(3);
    up = register_parameter("up", make(at::randn({7, 3}, at::kDouble), 0));
    bias = register_parameter("bias", make(at::randn({7}, at::kDouble), 0));
    factor = register_parameter("factor", at::randn({7}, at::kDouble));
    down = register_parameter("down", make(at::randn({2, 7}, at::kDouble), 1));
  }
  Tensor loss(const Tensor& x, const Tensor& y) {
    const Tensor hidden = (at::linear(x, up, bias) * factor).tanh();
    return at::mse_loss(at::linear(hidden, down), y);
  }
  Tensor up, bias, factor, down;
};
TORCH_MODULE(CutNetwork);

const bool kCutParameters = register_rank_function("cut_parameters", [] {
  const JoinedWorld world;
  const TestMesh test = mesh_of(world);
  const Tensor whole = data(7);
  const Tensor target = whole.narrow(2, 0, 2).sin();
  const auto domain_first = [&](const Placement& domain) {
    return test.mesh.ndim() == 1 ? Placements{domain} : Placements{Replicate(), domain};
  };
  // Tokens that are whole along the axis that cuts the weights, and tokens that it cuts too.
  for (const Placement& tokens : {Replicate(), Shard(1)}) {
    SCOPED_TRACE(to_string(tokens));
    CutNetwork alone([](const Tensor& parameter, int64_t) { return parameter; });
    CutNetwork network([&](const Tensor& parameter, int64_t dim) {
      const ShardTensor part = cut(parameter, test.mesh, domain_first(Shard(dim)));
      return ShardTensor(part.to_local(), part.spec(), true);
    });
    distribute_module(*network, test.mesh,
                      {.placements = {{"up", domain_first(Shard(0))},
                                      {"down", domain_first(Shard(1))},
                                      {"factor", domain_first(Replicate())}}});
    Placements batch = domain_first(tokens);
    if (batch.size() == 2) batch[0] = Shard(0);
    const ShardTensor x = cut(whole, test.mesh, batch);
    torch::optim::AdamW optimizer(network->parameters(), torch::optim::AdamWOptions(0.01));
    torch::optim::AdamW optimizer_alone(alone->parameters(), torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      optimizer_alone.zero_grad();
      const Tensor loss = network->loss(x, target);
      const Tensor wanted = alone->loss(whole, target);
      ASSERT_LE(relative_l2(ShardTensor(loss).full_tensor(), wanted), 1e-10) << step;
      loss.backward();
      wanted.backward();
      if (step == 0) {
        const Tensor gradient = network->up.grad();
        EXPECT_EQ(ShardTensor(gradient).placements(), domain_first(Shard(0)));
        EXPECT_LE(relative_l2(ShardTensor(gradient).full_tensor(), alone->up.grad()), 1e-12);
      }
      optimizer.step();
      optimizer_alone.step();
    }
    const auto theirs = alone->named_parameters();
    for (const auto& item : network->named_parameters()) {
      const bool is_cut = item.key() != "factor";
      ASSERT_EQ(is_shard_tensor(item.value()), is_cut) << item.key();
      const Tensor trained = is_cut ? ShardTensor(item.value()).full_tensor() : item.value();
      EXPECT_LE(relative_l2(trained, theirs[item.key()]), 1e-10) << item.key();
    }
    EXPECT_EQ(ShardTensor(network->down).placements(), domain_first(Shard(1)));
  }
});

TEST(DistributeModuleTest, ParametersThatAreCutTrainAsWholeOnes) {
  run_in_worlds("cut_parameters", {1, 2, 3, 4}, {"ucx"});
}

const bool kErrors = register_rank_function("distributed_errors", [] {
  const JoinedWorld world;
  const DeviceMesh mesh = mesh_of(world).mesh;
  const bool is_last = world.rank == world.size - 1;
  Network network;
  const auto distribute = [&](const DistributeModuleOptions& options) {
    distribute_module(*network, mesh, options);
  };
  expect_error_on_all_ranks([&] { distribute({.bucket_cap_mb = is_last ? 0.0 : 1.0}); },
                            "bucket_cap_mb must be positive");
  expect_error_on_all_ranks(
      [&] {
        distribute({.placements = {{"none", {Replicate()}}}});
      },
      "no parameter \"none\"");
  expect_error_on_all_ranks(
      [&] {
        distribute({.placements = {{"position", {Shard(1)}}}});
      },
      "a module keeps the tensor that it was built with");
  expect_error_on_all_ranks([&] { distribute({.use_fp32_reduction = is_last}); }, "options differ");
  distribute({.placements = {{"position", {Replicate()}}}});
  expect_error_on_all_ranks([&] { distribute({}); }, "shared already");
  expect_error_on_all_ranks([&] { mark_module_as_shared(*network); }, "marked as shared already");
});

TEST(DistributeModuleTest, WrongUseIsOneErrorOnAllRanks) {
  run_in_worlds("distributed_errors", {2, 3}, {"ucx"});
}

TEST(DistributeModuleTest, OptionsTakeBoolsForBools) {
  EXPECT_TAKES_BOOL_ONLY(DistributeModuleOptions{.use_fp32_reduction = value});
}

}  // namespace
}  // namespace meshrun
