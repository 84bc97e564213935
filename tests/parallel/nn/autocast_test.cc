// The bfloat16 recipe against float32, on one rank and on several.
#include "parallel/nn/autocast.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "parallel/base/split.h"
#include "parallel/nn/distributed_data_parallel.h"
#include "parallel/nn/fully_connected.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/parameters.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/tensor_oracle.h"

namespace meshrun {
namespace {

using at::Tensor;

constexpr int64_t kBatch = 24;
constexpr int kSteps = 30;

struct Trained {
  FullyConnected network = nullptr;
  std::vector<Tensor> first_gradients;
  double loss = 0;
};

// On this rank's share of each batch; `weight` is ranks / batch.
template <typename Forward>
Trained train(FullyConnected network, const SplitRange& share, double weight,
              const Forward& forward) {
  torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(1e-2));
  Trained result{network};
  for (int step = 0; step < kSteps; ++step) {
    at::manual_seed(100 + step);
    const Tensor x = at::randn({kBatch, 4}).narrow(0, share.begin, share.size());
    const Tensor y = x.sin().sum(1, true);
    optimizer.zero_grad();
    const Tensor predicted = forward(x);
    EXPECT_EQ(predicted.scalar_type(), at::kFloat);
    const Tensor loss = weight * (predicted - y).square().sum();
    loss.backward();
    if (step == 0) {
      for (const Tensor& parameter : network->parameters()) {
        EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
        result.first_gradients.push_back(parameter.grad().clone());
      }
    }
    optimizer.step();
    result.loss = loss.item<double>();
  }
  return result;
}

FullyConnected make_network() {
  at::manual_seed(1);
  return FullyConnected(
      FullyConnectedOptions().in_features(4).layer_size(32).out_features(1).num_layers(2));
}

const bool kRecipe = register_rank_function("bfloat16_recipe", [] {
  const JoinedWorld world;
  const FullyConnected f32 = make_network();
  const SplitRange all{0, kBatch};
  const Trained exact =
      train(f32, all, 1.0 / kBatch, [&](const Tensor& x) { return FullyConnected(f32)(x); });
  const FullyConnected one = make_network();
  const Trained alone = train(one, all, 1.0 / kBatch, [&](const Tensor& x) {
    return in_bfloat16(c10::kCPU, [&] {
      const Tensor y = FullyConnected(one)(x);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      return y;
    });
  });
  FullyConnected shared = make_network();
  DistributedDataParallel model(shared);
  const Trained together = train(
      shared, split_range(kBatch, world.size, world.rank), static_cast<double>(world.size) / kBatch,
      [&](const Tensor& x) { return in_bfloat16(c10::kCPU, [&] { return model(x); }); });
  double worst_to_f32 = 0;
  double worst_to_one = 0;
  for (size_t i = 0; i < alone.first_gradients.size(); ++i) {
    worst_to_f32 =
        std::max(worst_to_f32, relative_l2(alone.first_gradients[i], exact.first_gradients[i]));
    worst_to_one =
        std::max(worst_to_one, relative_l2(together.first_gradients[i], alone.first_gradients[i]));
  }
  EXPECT_LE(worst_to_f32, 2e-2);
  EXPECT_LE(worst_to_one, 2e-2);
  EXPECT_GT(worst_to_f32, 1e-5) << "nothing was computed in bfloat16";
  // Over a training the parameters drift apart slowly.
  const std::vector<Tensor> ours = shared->parameters();
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE(relative_l2(ours[i], one->parameters()[i]), 5e-2) << i;
    EXPECT_LE(relative_l2(one->parameters()[i], f32->parameters()[i]), 5e-2) << i;
  }
  if (world.rank == 0) {
    std::cout << "bfloat16, first gradients: to float32 " << worst_to_f32 << ", " << world.size
              << " ranks to one " << worst_to_one << "\n";
  }
});

TEST(AutocastTest, TheRecipeIsNearFloat32AndTheSameOnAnyNumberOfRanks) {
  run_in_worlds("bfloat16_recipe", {1, 3}, {"ucx"});
}

TEST(AutocastTest, GuardsNestAndPutBackWhatWas) {
  const Tensor a = at::ones({2, 2});
  {
    const AutocastGuard outer(c10::kCPU, true);
    EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
    {
      const AutocastGuard inner(c10::kCPU, false);
      EXPECT_EQ(at::mm(a, a).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(at::mm(a, a).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::mm(a, a).scalar_type(), at::kFloat);
  const std::vector<Tensor> results = in_bfloat16(c10::kCPU, [&] {
    return std::vector<Tensor>{at::mm(a, a), at::ones({2}, at::kLong)};
  });
  EXPECT_EQ(results[0].scalar_type(), at::kFloat);
  EXPECT_EQ(results[1].scalar_type(), at::kLong);
  EXPECT_THROW(in_bfloat16(c10::kCPU, [&]() -> Tensor { throw std::runtime_error("inside"); }),
               std::runtime_error);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
  EXPECT_THROW(AutocastGuard(c10::DeviceType::Vulkan, true), c10::ValueError);
}

TEST(AutocastTest, GuardsTakeBoolsForBools) {
  EXPECT_TAKES_BOOL_ONLY(AutocastGuard(c10::kCPU, value));
  EXPECT_TAKES_BOOL_ONLY(AutocastGuard(c10::kCPU, true, at::kBFloat16, value));
}

}  // namespace
}  // namespace meshrun
