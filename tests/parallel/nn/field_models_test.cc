// The vision transformer and the U-Net on one rank.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "parallel/nn/unet.h"
#include "parallel/nn/vision_transformer.h"
#include "tests/parallel/support/memory_meter.h"
#include "tests/parallel/support/parameters.h"

namespace meshrun {
namespace {

using at::Tensor;

// Small tensors, shared cores.
const bool kOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

VisionTransformerOptions small_transformer() {
  return VisionTransformerOptions({8, 12}, 2, 3)
      .patch_size({2, 3})
      .embed_dim(16)
      .depth(2)
      .num_heads(2)
      .mlp_ratio(2);
}

// Losses of some steps towards a smooth field.
template <typename Model>
std::pair<double, double> first_and_last_loss(Model model, const Tensor& x, const Tensor& y) {
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(3e-3));
  double first = 0;
  double last = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const Tensor loss = (model(x) - y).square().mean();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  return {first, last};
}

template <typename Model>
std::vector<Tensor> gradients(Model model, const Tensor& x) {
  model->zero_grad();
  at::manual_seed(9);
  model(x).square().sum().backward();
  std::vector<Tensor> all;
  for (const Tensor& parameter : model->parameters()) all.push_back(parameter.grad().clone());
  return all;
}

template <typename Model>
void expect_same_gradients(Model one, Model other, const Tensor& x) {
  const std::vector<Tensor> a = gradients(one, x);
  const std::vector<Tensor> b = gradients(other, x);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST(VisionTransformerTest, APatchOfTheResultComesFromItsToken) {
  at::manual_seed(1);
  VisionTransformer model(small_transformer().depth(0));
  const Tensor x = at::randn({2, 2, 8, 12});
  const auto parameters = model->named_parameters();
  // Without blocks: a convolution, the norm at each point, a transposed convolution.
  const Tensor tokens =
      at::conv2d(x, parameters["tokens.weight"], parameters["tokens.bias"], {2, 3}) +
      parameters["pos_embed"].permute({0, 3, 1, 2});
  const Tensor normed = at::layer_norm(tokens.permute({0, 2, 3, 1}), {16}).permute({0, 3, 1, 2});
  const Tensor kernel = parameters["head.weight"].view({3, 2, 3, 16}).permute({3, 0, 1, 2});
  const Tensor bias = parameters["head.bias"]
                          .view({1, 3, 1, 2, 1, 3})
                          .expand({1, 3, 4, 2, 4, 3})
                          .reshape({1, 3, 8, 12});
  const Tensor wanted = at::conv_transpose2d(normed, kernel, {}, {2, 3}) + bias;
  EXPECT_TRUE(at::allclose(model(x), wanted, 1e-4, 1e-5));
}

TEST(VisionTransformerTest, LearnsAndMayComputeBlocksTwice) {
  at::manual_seed(2);
  VisionTransformer model(small_transformer());
  const Tensor x = at::randn({4, 2, 8, 12});
  const Tensor y = at::stack({x.select(1, 0).sin(), x.select(1, 1), x.sum(1)}, 1);
  const auto [first, last] = first_and_last_loss(model, x, y);
  EXPECT_LT(last, 0.8 * first);

  at::manual_seed(3);
  VisionTransformer plain(small_transformer().dropout(0.2));
  at::manual_seed(3);
  VisionTransformer twice(small_transformer().dropout(0.2).checkpoint_blocks(true));
  expect_same_gradients(plain, twice, x);
}

TEST(VisionTransformerTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(VisionTransformer(VisionTransformerOptions({8, 10}, 1, 1).patch_size({4, 4})),
               c10::ValueError);
  EXPECT_THROW(VisionTransformer(small_transformer().num_heads(3)), c10::ValueError);
  EXPECT_THROW(VisionTransformer(small_transformer().dropout(1)), c10::ValueError);
  EXPECT_THROW(VisionTransformer(small_transformer())->forward(at::ones({1, 2, 8, 8})),
               c10::ValueError);
}

TEST(UNetTest, LearnsAndMayComputeStagesTwice) {
  const auto options = UNetOptions(1, 2).base_channels(4).depth(2).num_groups(2);
  at::manual_seed(4);
  UNet model(options);
  const Tensor x = at::randn({2, 1, 16, 8});
  EXPECT_EQ(model(x).sizes(), at::IntArrayRef({2, 2, 16, 8}));
  const Tensor y = at::cat({at::avg_pool2d(x, {5, 5}, {1, 1}, {2, 2}), x.square()}, 1);
  const auto [first, last] = first_and_last_loss(model, x, y);
  EXPECT_LT(last, 0.8 * first);

  UNet plain(options);
  UNet twice(UNetOptions(options).checkpoint_stages(true));
  for (const auto& item : plain->named_parameters()) {
    twice->named_parameters()[item.key()].set_data(item.value().detach().clone());
  }
  expect_same_gradients(plain, twice, x);
  const auto held = [&](UNet network) {
    MemoryMeter meter;
    const Tensor output = network(at::ones({1, 1, 64, 64}));
    return meter.live_bytes();
  };
  EXPECT_LT(5 * held(twice), 2 * held(plain));
}

TEST(UNetTest, TheCoarsestLevelSeesTheWholeField) {
  at::manual_seed(5);
  UNet model(UNetOptions(1, 1).base_channels(4).depth(3).num_groups(2));
  const Tensor x = at::randn({1, 1, 32, 32}).set_requires_grad(true);
  model(x)[0][0][0][0].backward();
  EXPECT_NE(x.grad()[0][0][20][20].item<float>(), 0);
}

TEST(UNetTest, RefusesWhatDoesNotFit) {
  EXPECT_THROW(UNet(UNetOptions(1, 1).num_groups(3)), c10::ValueError);
  EXPECT_THROW(UNet(UNetOptions(1, 1).depth(-1)), c10::ValueError);
  EXPECT_THROW(UNet(UNetOptions(1, 1))->forward(at::ones({1, 1, 12, 16})), c10::ValueError);
  EXPECT_THROW(UNet(UNetOptions(1, 1))->forward(at::ones({1, 2, 16, 16})), c10::ValueError);
}

TEST(UNetTest, OptionsTakeEachForItself) {
  EXPECT_TAKES_INTEGERS_ONLY(UNetOptions(value, 1));
  EXPECT_TAKES_INTEGERS_ONLY(UNetOptions(1, value));
  EXPECT_TAKES_INTEGERS_ONLY(UNetOptions(1, 1).base_channels(value));
  EXPECT_TAKES_INTEGERS_ONLY(UNetOptions(1, 1).depth(value));
  EXPECT_TAKES_INTEGERS_ONLY(UNetOptions(1, 1).num_groups(value));
  EXPECT_TAKES_BOOL_ONLY(UNetOptions(1, 1).checkpoint_stages(value));
  EXPECT_TAKES_INTEGERS_ONLY(UNetStageImpl(value, 4, 2));
  EXPECT_TAKES_INTEGERS_ONLY(UNetStageImpl(4, value, 2));
  EXPECT_TAKES_INTEGERS_ONLY(UNetStageImpl(4, 4, value));
}

TEST(VisionTransformerTest, OptionsTakeEachForItself) {
  using Options = VisionTransformerOptions;
  EXPECT_TAKES_INTEGERS_ONLY(Options({8, 8}, value, 1));
  EXPECT_TAKES_INTEGERS_ONLY(Options({8, 8}, 1, value));
  EXPECT_TAKES_INTEGERS_ONLY(Options({8, 8}, 1, 1).embed_dim(value));
  EXPECT_TAKES_INTEGERS_ONLY(Options({8, 8}, 1, 1).depth(value));
  EXPECT_TAKES_INTEGERS_ONLY(Options({8, 8}, 1, 1).num_heads(value));
  EXPECT_TAKES_BOOL_ONLY(Options({8, 8}, 1, 1).checkpoint_blocks(value));
  EXPECT_TAKES_INTEGERS_ONLY(TransformerBlockImpl(value, 2, 8, 0.0));
  EXPECT_TAKES_INTEGERS_ONLY(TransformerBlockImpl(4, value, 8, 0.0));
  EXPECT_TAKES_INTEGERS_ONLY(TransformerBlockImpl(4, 2, value, 0.0));
}

}  // namespace
}  // namespace meshrun
