// gradcheck.h over a process group of ours: it accepts right gradients and finds wrong ones.
#include "tests/parallel/support/gradcheck.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/rank_world.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor sum_over_ranks(const RankWorld::Group& group, const Tensor& tensor) {
  Tensors sums = {tensor.detach().clone()};
  group->allreduce(sums)->wait();
  return sums[0];
}

// y = the sum of x over ranks, whose gradient is the sum of the cotangents; `factor` 1 is right.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x, double factor,
                        const RankWorld::Group& group) {
    context->saved_data["factor"] = factor;
    context->saved_data["group"] = group;
    return sum_over_ranks(group, x);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const double factor = context->saved_data["factor"].toDouble();
    const auto group = context->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    return {SumOverRanks::apply(gradients[0], 1.0, group) * factor, Tensor(), Tensor()};
  }
};

// As above, and its second derivative is missing: the backward pass is not recorded.
struct SumWithoutSecondOrder : torch::autograd::Function<SumWithoutSecondOrder> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const RankWorld::Group& group) {
    context->saved_data["group"] = group;
    return sum_over_ranks(group, x);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const auto group = context->saved_data["group"].toCustomClass<c10d::ProcessGroup>();
    return {sum_over_ranks(group, gradients[0]), Tensor()};
  }
};

void check_the_check() {
  const RankWorld world;
  for (const at::ScalarType type : {at::kDouble, at::kComplexDouble}) {
    const Tensor x =
        (at::arange(3, at::kDouble) * 0.3 + world.rank() + 0.5).to(type).set_requires_grad(true);
    const auto summed = [&](double factor) -> RankFunction {
      return [&world, factor](const Tensors& inputs) -> Tensors {
        const Tensor y = SumOverRanks::apply(inputs[0] * inputs[0], factor, world.group());
        return {y * y * inputs[0]};
      };
    };
    EXPECT_EQ(gradcheck(world.group(), summed(1), {x}), "");
    EXPECT_EQ(gradgradcheck(world.group(), summed(1), {x}), "");
    EXPECT_NE(gradcheck(world.group(), summed(1.01), {x}).find("numeric"), std::string::npos);
    EXPECT_NE(gradgradcheck(world.group(), summed(1.01), {x}), "");
  }
  const Tensor x = (at::arange(2, at::kDouble) + 0.5).set_requires_grad(true);
  const RankFunction half = [&](const Tensors& inputs) -> Tensors {
    return {SumWithoutSecondOrder::apply(inputs[0] * inputs[0], world.group()) * inputs[0]};
  };
  EXPECT_EQ(gradcheck(world.group(), half, {x}), "");
  EXPECT_NE(gradgradcheck(world.group(), half, {x}), "");
  // A function without a collective, on ranks with different numbers of elements; one input needs
  // no gradient.
  const Tensor uneven = (at::arange(world.rank() + 1, at::kDouble)).set_requires_grad(true);
  const RankFunction local = [](const Tensors& inputs) -> Tensors {
    return {inputs[0].sin() * inputs[1], inputs[0].exp()};
  };
  const Tensor fixed = at::arange(world.rank() + 1, at::kDouble) + 2;
  EXPECT_EQ(gradcheck(world.group(), local, {uneven, fixed}), "");
  EXPECT_EQ(gradgradcheck(world.group(), local, {uneven, fixed}), "");
}
[[maybe_unused]] const bool kRegistered = register_rank_function("gradcheck", check_the_check);

TEST(GradcheckTest, AcceptsRightGradientsOfSeveralRanksAndFindsWrongOnes) {
  expect_success(run_ranks("gradcheck", env_ranks(2), std::chrono::minutes(4), RankStart::kFork));
}

}  // namespace
}  // namespace meshrun
