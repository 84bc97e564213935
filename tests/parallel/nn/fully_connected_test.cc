#include "parallel/nn/fully_connected.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/parallel/support/parameters.h"

namespace meshrun {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

FullyConnectedOptions small() {
  return FullyConnectedOptions().in_features(3).layer_size(5).out_features(2).num_layers(3);
}

TEST(FullyConnectedTest, ParametersAreNamedAndShapedAsPhysicsNemos) {
  FullyConnected network(small().num_layers(1));
  std::vector<std::string> names;
  for (const auto& item : network->named_parameters()) names.push_back(item.key());
  EXPECT_THAT(names, ElementsAre("layers.0.linear.weight", "layers.0.linear.bias",
                                 "final_layer.linear.weight", "final_layer.linear.bias"));
  EXPECT_EQ(network->named_parameters()["layers.0.linear.weight"].sizes(), (at::IntArrayRef{5, 3}));
  EXPECT_EQ(network->named_parameters()["layers.0.linear.bias"].abs().max().item<float>(), 0);
}

TEST(FullyConnectedTest, DefaultsAreTheSpecifications) {
  const FullyConnectedOptions options;
  EXPECT_EQ(options.in_features(), 512);
  EXPECT_EQ(options.layer_size(), 512);
  EXPECT_EQ(options.out_features(), 512);
  EXPECT_EQ(options.num_layers(), 6);
  EXPECT_THAT(options.activation_fn(), ElementsAre("silu"));
  EXPECT_FALSE(options.skip_connections());
  EXPECT_FALSE(options.adaptive_activations());
}

TEST(FullyConnectedTest, OptionsTakeBoolsForBoolsAndIntegersForIntegers) {
  EXPECT_TAKES_INTEGERS_ONLY(FullyConnectedOptions().in_features(value));
  EXPECT_TAKES_INTEGERS_ONLY(FullyConnectedOptions().layer_size(value));
  EXPECT_TAKES_INTEGERS_ONLY(FullyConnectedOptions().out_features(value));
  EXPECT_TAKES_INTEGERS_ONLY(FullyConnectedOptions().num_layers(value));
  EXPECT_TAKES_BOOL_ONLY(FullyConnectedOptions().skip_connections(value));
  EXPECT_TAKES_BOOL_ONLY(FullyConnectedOptions().adaptive_activations(value));
  EXPECT_TAKES_INTEGERS_ONLY(FullyConnectedLayerImpl(value, 2, Activation()));
  EXPECT_TAKES_INTEGERS_ONLY(FullyConnectedLayerImpl(2, value, Activation()));
}

TEST(FullyConnectedTest, ComputesLayerByLayer) {
  FullyConnected network(small().activation_fn({"relu", "tanh"}));
  const auto parameters = network->named_parameters();
  const auto linear = [&](const std::string& layer, const Tensor& x) {
    return at::linear(x, parameters[layer + ".linear.weight"], parameters[layer + ".linear.bias"]);
  };
  const Tensor x = torch::randn({4, 3});
  Tensor y = at::relu(linear("layers.0", x));
  y = at::tanh(linear("layers.1", y));
  y = at::tanh(linear("layers.2", y));  // the last name holds for what follows
  EXPECT_TRUE(at::allclose(network(x), linear("final_layer", y)));
}

TEST(FullyConnectedTest, SkipConnectionsAddEverySecondLayer) {
  FullyConnected network(small().activation_fn({"identity"}).skip_connections(true));
  const auto parameters = network->named_parameters();
  const auto linear = [&](const std::string& layer, const Tensor& x) {
    return at::linear(x, parameters[layer + ".linear.weight"], parameters[layer + ".linear.bias"]);
  };
  const Tensor x = torch::randn({4, 3});
  const Tensor first = linear("layers.0", x);
  const Tensor third = linear("layers.2", linear("layers.1", first)) + first;
  EXPECT_TRUE(at::allclose(network(x), linear("final_layer", third), 1e-5, 1e-6));
}

TEST(FullyConnectedTest, AdaptiveActivationsLearnOneFactor) {
  FullyConnected network(small().adaptive_activations(true));
  const Tensor factor = network->named_parameters()["activation_par"];
  ASSERT_EQ(factor.sizes(), (at::IntArrayRef{1}));
  network(torch::randn({4, 3})).sum().backward();
  EXPECT_NE(factor.grad().item<float>(), 0);
}

TEST(FullyConnectedTest, KeepsLeadingDimensions) {
  EXPECT_EQ(FullyConnected(small())->forward(torch::randn({2, 7, 3})).sizes(),
            (at::IntArrayRef{2, 7, 2}));
}

TEST(FullyConnectedTest, WhatDoesNotFitIsAValueErrorWithBothSides) {
  FullyConnected network(small());
  EXPECT_THAT(
      [&] {
        network(torch::randn({4, 2}));
      },
      ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("[batch..., 3]"), HasSubstr("[4, 2]"))));
  EXPECT_THAT([&] { network(torch::randn({3})); },
              ThrowsMessage<c10::ValueError>(HasSubstr("[3]")));
  EXPECT_THAT([] { FullyConnected bad(small().activation_fn({"swishy"})); },
              ThrowsMessage<c10::ValueError>(AllOf(HasSubstr("swishy"), HasSubstr("silu"))));
  EXPECT_THAT([] { FullyConnected bad(small().num_layers(0)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("num_layers")));
}

}  // namespace
}  // namespace meshrun
