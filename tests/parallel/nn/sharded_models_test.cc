// The vision transformer and the U-Net with their activations cut over a mesh, against one rank.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "parallel/collectives/call/output_memory.h"
#include "parallel/nn/distribute_module.h"
#include "parallel/nn/unet.h"
#include "parallel/nn/vision_transformer.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/nn/on_mesh.h"
#include "tests/parallel/support/memory_meter.h"
#include "tests/parallel/support/rank_processes.h"
#include "tests/parallel/support/tensor_oracle.h"

namespace meshrun {
namespace {

using at::Tensor;

constexpr int64_t kRows = 24;
constexpr int64_t kColumns = 16;
constexpr int64_t kPatch = 4;
constexpr int64_t kUNetUnit = 4;

VisionTransformer small_transformer() {
  at::manual_seed(1);
  return VisionTransformer(VisionTransformerOptions({kRows, kColumns}, 1, 1)
                               .patch_size({kPatch, kPatch})
                               .embed_dim(32)
                               .depth(2)
                               .num_heads(2)
                               .mlp_ratio(2));
}

UNet small_unet() {
  at::manual_seed(2);
  return UNet(UNetOptions(1, 1).base_channels(4).depth(2).num_groups(2));
}

struct Batch {
  Tensor x;
  Tensor y;
};

// Another one in every step; y is smooth in x.
Batch batch_of(int step, int64_t size, int64_t rows, int64_t columns) {
  at::manual_seed(1000 + step);
  const Tensor x = at::randn({size, 1, rows, columns});
  return {x, at::avg_pool2d(x, {3, 3}, {1, 1}, {1, 1}).tanh() + 0.3 * x};
}

template <typename Model>
double train_step(Model& model, torch::optim::Optimizer& optimizer, const Tensor& x,
                  const Tensor& y) {
  optimizer.zero_grad();
  const Tensor loss = at::mse_loss(model(x), y);
  loss.backward();
  optimizer.step();
  const Tensor value = loss.detach();
  return is_shard_tensor(value) ? ShardTensor(value).full_tensor().template item<double>()
                                : value.template item<double>();
}

// --- the same training ---

template <typename Model>
void expect_same_training(Model sharded, Model alone, const TestMesh& test, int64_t unit,
                          const char* name) {
  constexpr int kSteps = 50;
  constexpr int64_t kBatch = 3;  // uneven over dp
  distribute_module(*sharded, test.mesh);
  const torch::optim::AdamOptions adam(1e-3);
  torch::optim::Adam optimizer(sharded->parameters(), adam);
  torch::optim::Adam reference(alone->parameters(), adam);
  double first = 0;
  double last = 0;
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batch_of(step, kBatch, kRows, kColumns);
    const Placements placements = test.placements(0, 2);
    last = train_step(sharded, optimizer, cut(batch.x, test.mesh, placements, unit),
                      cut(batch.y, test.mesh, placements, unit));
    const double wanted = train_step(alone, reference, batch.x, batch.y);
    if (step == 0) first = last;
    ASSERT_NEAR(last, wanted, 1e-4 * wanted) << name << ", step " << step;
  }
  EXPECT_LT(last, 0.8 * first) << name;
  double worst = 0;
  const auto theirs = alone->named_parameters();
  for (const auto& item : sharded->named_parameters()) {
    const double distance = relative_l2(item.value().detach(), theirs[item.key()].detach());
    worst = std::max(worst, distance);
    EXPECT_LE(distance, 1e-4) << name << " on " << test.name << ": " << item.key();
  }
  std::cout << name << " on " << test.name << ": loss " << first << " to " << last
            << ", parameters differ by at most " << worst << std::endl;
}

const bool kTrains = register_rank_function("sharded_training", [] {
  const JoinedWorld world;
  const TestMesh test = mesh_of(world);
  expect_same_training(small_transformer(), small_transformer(), test, kPatch, "transformer");
  expect_same_training(small_unet(), small_unet(), test, kUNetUnit, "U-Net");
});

void run_strictly(const std::string& function, int size, const Variables& more = {}) {
  std::vector<Variables> ranks = env_ranks(size);
  for (Variables& rank : ranks) {
    rank["MESHRUN_SHARD_STRICT"] = "1";
    rank.insert(more.begin(), more.end());
  }
  const std::vector<RankResult> results = run_ranks(function, ranks, RankStart::kExec);
  expect_success(results);
  std::cout << results[0].output;
}

TEST(ShardedModelsTest, FiftyStepsEqualThoseOfOneRank) {
  run_strictly("sharded_training", 4);
  run_strictly("sharded_training", 3);
}

// --- memory ---

// The most that a step's activations hold: beyond parameters, gradients and optimizer state.
template <typename Model>
int64_t activation_bytes(Model model, const Tensor& x, const Tensor& y) {
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  for (int step = 0; step < 2; ++step) train_step(model, optimizer, x, y);
  optimizer.zero_grad();
  release_output_memory();
  const auto before = static_cast<int64_t>(output_memory().used_bytes);
  int64_t gradients = 0;
  for (const Tensor& parameter : model->parameters()) {
    gradients += static_cast<int64_t>(parameter.nbytes());
  }
  MemoryMeter meter;
  train_step(model, optimizer, x, y);
  const auto received = static_cast<int64_t>(output_memory().peak_bytes) - before;
  return meter.peak_bytes() - gradients + received;
}

const bool kMemory = register_rank_function("sharded_memory", [] {
  const JoinedWorld world;
  const TestMesh test = mesh_of(world, /*flat=*/true);
  constexpr int64_t kSize = 64;
  const Batch batch = batch_of(0, 2, kSize, kSize);
  const auto measure = [&](const char* name, auto make) {
    const int64_t whole = activation_bytes(make(), batch.x, batch.y);
    auto model = make();
    distribute_module(*model, test.mesh);
    const int64_t part = activation_bytes(model, cut(batch.x, test.mesh, {Shard(2)}, 8),
                                          cut(batch.y, test.mesh, {Shard(2)}, 8));
    const double ratio = static_cast<double>(whole) / static_cast<double>(part);
    std::cout << name << ": activations of a step " << whole / 1024 << " KiB on one rank, "
              << part / 1024 << " KiB on one of " << world.size << ", ratio " << ratio << std::endl;
    EXPECT_GE(ratio, world.size == 2 ? 1.7 : 3.0) << name;
  };
  measure("transformer", [&] {
    at::manual_seed(3);
    return VisionTransformer(VisionTransformerOptions({kSize, kSize}, 1, 1)
                                 .patch_size({4, 4})
                                 .embed_dim(64)
                                 .depth(4)
                                 .num_heads(4));
  });
  measure("U-Net", [&] {
    at::manual_seed(4);
    return UNet(UNetOptions(1, 1).base_channels(16).depth(3).num_groups(4));
  });
});

TEST(ShardedModelsTest, ActivationsShrinkWithTheDomain) {
  run_strictly("sharded_memory", 2);
  run_strictly("sharded_memory", 4);
}

}  // namespace
}  // namespace meshrun
