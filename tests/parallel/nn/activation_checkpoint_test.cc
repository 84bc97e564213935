#include "parallel/nn/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/linear.h>

#include "parallel/nn/autocast.h"
#include "tests/parallel/support/memory_meter.h"

namespace meshrun {
namespace {

using at::Tensor;
using torch::nn::Linear;

void expect_same(const Tensor& actual, const Tensor& wanted, const char* what) {
  ASSERT_EQ(actual.defined(), wanted.defined()) << what;
  if (wanted.defined()) {
    EXPECT_TRUE(at::equal(actual, wanted)) << what;
  }
}

Tensor leaf(at::IntArrayRef shape) { return at::randn(shape).set_requires_grad(true); }

// Layer with dropout: two inputs, three results, one of them of integers.
struct Layer {
  Linear first{6, 8};
  Linear second{8, 6};

  std::vector<Tensor> operator()(const Tensor& x, const Tensor& scale) const {
    auto [one, two] = std::pair(first, second);
    const Tensor h = at::dropout(at::gelu(one(x)), 0.4, true) * scale;
    return {two(h), h.argmax(1), h};
  }
};

// What a run leaves: results, gradients, and the generator's next number.
template <typename Run>
std::vector<Tensor> traces(const Run& run) {
  at::manual_seed(3);
  Layer layer;
  const Tensor x = leaf({5, 6});
  const Tensor scale = at::rand({5, 1});
  const std::vector<Tensor> outputs = run(layer, x, scale);
  Tensor loss = at::zeros({});
  for (const Tensor& output : outputs) {
    if (output.is_floating_point()) loss = loss + (output * output).sum();
  }
  const Tensor next = at::rand({3});  // before the backward pass moves the generator, if it does
  loss.backward();
  std::vector<Tensor> all = outputs;
  for (const Tensor& parameter :
       {x, layer.first->weight, layer.first->bias, layer.second->weight, layer.second->bias}) {
    all.push_back(parameter.grad());
  }
  all.push_back(next);
  all.push_back(at::rand({3}));
  return all;
}

void expect_same(const std::vector<Tensor>& actual, const std::vector<Tensor>& wanted) {
  ASSERT_EQ(actual.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    expect_same(actual[i], wanted[i], std::to_string(i).c_str());
  }
}

TEST(ActivationCheckpointTest, GradientsAndRandomNumbersAreThoseOfThePlainRun) {
  const auto plain = traces(
      [](const Layer& layer, const Tensor& x, const Tensor& scale) { return layer(x, scale); });
  const auto outside = traces([](const Layer& layer, const Tensor& x, const Tensor& scale) {
    std::vector<Tensor> outputs = checkpoint(layer, x, scale);
    EXPECT_TRUE(outputs[0].requires_grad());
    EXPECT_FALSE(outputs[1].requires_grad());
    return outputs;
  });
  expect_same(outside, plain);
  const auto nested = traces([](const Layer& layer, const Tensor& x, const Tensor& scale) {
    return checkpoint(
        [&layer](const Tensor& a, const Tensor& b) { return checkpoint(layer, a, b); }, x, scale);
  });
  expect_same(nested, plain);
}

TEST(ActivationCheckpointTest, CapturedParametersGetGradientsWhereNoInputNeedsOne) {
  const Tensor weight = leaf({4, 4});
  const Tensor x = at::randn({3, 4});
  (at::mm(x, weight).tanh()).sum().backward();
  const Tensor wanted = std::exchange(weight.mutable_grad(), Tensor());
  const Tensor y = checkpoint([&](const Tensor& in) { return at::mm(in, weight).tanh(); }, x);
  y.sum().backward({}, /*retain_graph=*/true);
  expect_same(weight.grad(), wanted, "weight");
  EXPECT_FALSE(x.grad().defined());
  y.sum().backward();  // again, added
  EXPECT_TRUE(at::equal(weight.grad(), 2 * wanted));
}

TEST(ActivationCheckpointTest, AnUnusedOutputAndAnInputHandedOnAreOrdinary) {
  const Tensor x = leaf({3});
  const std::vector<Tensor> outputs = checkpoint(
      [](const Tensor& in) {
        return std::vector<Tensor>{in * 2, in, at::ones({2})};
      },
      x);
  (outputs[1] * 3).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({3}, 3.0)));
  // Nothing that needs a gradient.
  const Tensor y = checkpoint([](const Tensor& in) { return in * 2; }, at::ones({2}));
  EXPECT_NO_THROW(y.sum().backward());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint([](const Tensor& in) { return in * 2; }, x).requires_grad());
}

TEST(ActivationCheckpointTest, AutocastIsThatOfTheFirstRun) {
  at::manual_seed(5);
  Linear linear(8, 8);
  const Tensor x = at::randn({4, 8});
  const auto run = [&](bool with) {
    linear->zero_grad();
    const auto body = [&](const Tensor& in) {
      Tensor y = linear(in);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      return y;
    };
    const Tensor y = in_bfloat16(c10::kCPU, [&] {
      const Tensor h = with ? checkpoint(body, x) : body(x);
      // The same weight again: the cast that the checkpointed run made has no graph.
      return linear(h);
    });
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    y.square().sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
    return linear->weight.grad().clone();
  };
  const Tensor plain = run(false);
  EXPECT_EQ(plain.scalar_type(), at::kFloat);
  // The two casts of the weight are added in float32 here, and in bfloat16 where one is cached.
  EXPECT_LE(((run(true) - plain).norm() / plain.norm()).item<double>(), 5e-3);
}

TEST(ActivationCheckpointTest, WhatCannotBeRightIsAnError) {
  const Tensor x = leaf({3});
  const auto twice = [](const Tensor& in) { return in * 2; };
  EXPECT_THROW(checkpoint(twice, Tensor()), c10::ValueError);
  const Tensor y = checkpoint(twice, x);
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}), c10::NotImplementedError);
  const Tensor z = checkpoint(twice, x);
  EXPECT_THROW(torch::autograd::backward({z.sum()}, {}, std::nullopt, /*create_graph=*/true),
               c10::NotImplementedError);
  int calls = 0;
  const std::vector<Tensor> changing = checkpoint(
      [&](const Tensor& in) { return std::vector<Tensor>(static_cast<size_t>(++calls), in * 2); },
      x);
  EXPECT_THROW(changing[0].sum().backward(), c10::ValueError);
}

TEST(ActivationCheckpointTest, WhatAFunctionComputesWithinIsNotKept) {
  const Tensor x = leaf({1 << 14});
  const auto layer = [](const Tensor& in) {
    Tensor h = in;
    for (int i = 0; i < 8; ++i) h = h.sin();
    return h;
  };
  const auto held = [&](bool with) {
    MemoryMeter meter;
    Tensor h = x;
    for (int i = 0; i < 4; ++i) h = with ? checkpoint(layer, h) : layer(h);
    return meter.live_bytes() / static_cast<int64_t>(x.nbytes());
  };
  EXPECT_EQ(held(false), 32);
  EXPECT_EQ(held(true), 4);
}

template <typename T>
constexpr bool kIsAnInput = requires(T value, Tensor (*one)(const Tensor&),
                                     Tensor (*two)(const Tensor&, T), const Tensor& x) {
  requires requires { checkpoint(one, value); } || requires {
    checkpoint(two, x, value);
  };
};

TEST(ActivationCheckpointTest, InputsAreTensorsOnly) {
  EXPECT_TRUE(kIsAnInput<Tensor>);
  EXPECT_FALSE(kIsAnInput<bool> || kIsAnInput<int64_t> || kIsAnInput<double>);
  EXPECT_FALSE(kIsAnInput<const char*> || kIsAnInput<std::nullptr_t> || kIsAnInput<void*>);
  EXPECT_FALSE(kIsAnInput<c10::Scalar> || kIsAnInput<std::vector<Tensor>>);
}

}  // namespace
}  // namespace meshrun
