// AFNO on one rank, against the formulas of the paper written out.
#include "parallel/nn/afno.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/nn/afno_plan.h"
#include "parallel/nn/autocast.h"
#include "tests/parallel/support/parameters.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Parameters = torch::OrderedDict<std::string, Tensor>;

// [n, kept] of exp(-+ 2 pi i row column / n) / sqrt(n).
Tensor fourier(int64_t n, int64_t kept, double sign) {
  const Tensor product = at::arange(n, at::kDouble).unsqueeze(1) * at::arange(kept, at::kDouble);
  const Tensor phase = product * (sign * 2 * M_PI / static_cast<double>(n));
  return at::complex(phase.cos(), phase.sin()) / std::sqrt(static_cast<double>(n));
}

Tensor part_by_part(const Tensor& z, const std::function<Tensor(const Tensor&)>& function) {
  return at::complex(function(at::real(z)), function(at::imag(z)));
}

// x: [B, H, W, C].
Tensor filtered(const Tensor& x, const Parameters& p, const std::string& name,
                const AFNOOptions& options) {
  const int64_t h = x.size(1), w = x.size(2), half = w / 2 + 1;
  Tensor modes = at::einsum("bhwc,hk,wl->bklc",
                            {x.to(at::kComplexDouble), fourier(h, h, -1), fourier(w, half, -1)});
  const Tensor w1 = at::complex(p[name + "w1"][0], p[name + "w1"][1]);
  const Tensor w2 = at::complex(p[name + "w2"][0], p[name + "w2"][1]);
  const Tensor b1 = at::complex(p[name + "b1"][0], p[name + "b1"][1]);
  const Tensor b2 = at::complex(p[name + "b2"][0], p[name + "b2"][1]);
  modes = modes.reshape({x.size(0), h, half, w1.size(0), w1.size(1)});
  const auto total = h / 2 + 1;
  const auto kept = static_cast<int64_t>(total * options.hard_thresholding_fraction());
  std::vector<Tensor> rows;
  for (int64_t k = 0; k < h; ++k) {
    std::vector<Tensor> columns;
    for (int64_t l = 0; l < half; ++l) {
      const Tensor z = modes.select(1, k).select(1, l);  // [B, blocks, i]
      if (l >= kept || k < total - kept || k >= total + kept) {
        columns.push_back(at::zeros_like(z));
        continue;
      }
      const Tensor o1 = part_by_part(at::einsum("bni,nio->bno", {z, w1}) + b1,
                                     [](const Tensor& part) { return at::relu(part); });
      columns.push_back(part_by_part(
          at::einsum("bni,nio->bno", {o1, w2}) + b2,
          [&](const Tensor& part) { return at::softshrink(part, options.sparsity_threshold()); }));
    }
    rows.push_back(at::stack(columns, 1));
  }
  const Tensor mixed = at::stack(rows, 1).flatten(3);
  // Columns that stand for their mirror image count twice.
  Tensor weight = at::full({half}, 2.0, at::kDouble);
  weight[0] = 1;
  if (w % 2 == 0) weight[half - 1] = 1;
  const Tensor back = at::einsum("bklc,hk,wl->bhwc", {mixed * weight.view({1, 1, half, 1}),
                                                      fourier(h, h, 1), fourier(w, half, 1)});
  return at::real(back) + x;
}

Tensor normalised(const Tensor& x, const Parameters& p, const std::string& name) {
  const Tensor centred = x - x.mean(-1, true);
  return centred / (centred.square().mean(-1, true) + 1e-6).sqrt() * p[name + "weight"] +
         p[name + "bias"];
}

Tensor expected(const Tensor& image, const Parameters& p, const AFNOOptions& options) {
  const int64_t ph = options.patch_size()[0], pw = options.patch_size()[1];
  const int64_t h = options.inp_shape()[0] / ph, w = options.inp_shape()[1] / pw;
  const Tensor embedded = at::conv2d(image, p["patch_embed.proj.weight"],
                                     p["patch_embed.proj.bias"], at::IntArrayRef{ph, pw});
  Tensor x = embedded.flatten(2).transpose(1, 2) + p["pos_embed"];
  x = x.reshape({image.size(0), h, w, -1});
  for (int64_t i = 0; i < options.depth(); ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    x = x + filtered(normalised(x, p, block + "norm1."), p, block + "filter.", options);
    const Tensor hidden =
        at::gelu(at::matmul(normalised(x, p, block + "norm2."), p[block + "mlp.fc1.weight"].t()) +
                 p[block + "mlp.fc1.bias"]);
    x = x + at::matmul(hidden, p[block + "mlp.fc2.weight"].t()) + p[block + "mlp.fc2.bias"];
  }
  const Tensor y = at::matmul(x, p["head.weight"].t());
  Tensor out = at::empty({image.size(0), options.out_channels(), h * ph, w * pw}, y.options());
  for (int64_t a = 0; a < ph; ++a) {
    for (int64_t b = 0; b < pw; ++b) {
      for (int64_t c = 0; c < options.out_channels(); ++c) {
        out.select(1, c)
            .slice(1, a, c10::nullopt, ph)
            .slice(2, b, c10::nullopt, pw)
            .copy_(y.select(-1, (a * pw + b) * options.out_channels() + c));
      }
    }
  }
  return out;
}

AFNOOptions small() {
  return AFNOOptions({8, 12}, 3, 2).patch_size({2, 2}).embed_dim(8).depth(2).num_blocks(2);
}

// In double precision, with parameters that use everything: larger than the initial ones.
AFNO model_of(const AFNOOptions& options) {
  at::manual_seed(7);
  AFNO model(options);
  model->to(at::kDouble);
  const at::NoGradGuard no_grad;
  for (const Tensor& parameter : model->parameters()) {
    parameter.add_(at::randn(parameter.sizes(), at::kDouble) * 0.2);
  }
  return model;
}

TEST(AfnoTest, ParametersAreNamedAndShapedAsPhysicsNemos) {
  AFNO model(small().depth(1));
  std::vector<std::string> names;
  for (const auto& item : model->named_parameters()) {
    names.push_back(c10::str(item.key(), " ", item.value().sizes()));
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "pos_embed [1, 24, 8]", "patch_embed.proj.weight [8, 3, 2, 2]",
                         "patch_embed.proj.bias [8]", "blocks.0.norm1.weight [8]",
                         "blocks.0.norm1.bias [8]", "blocks.0.filter.w1 [2, 2, 4, 4]",
                         "blocks.0.filter.b1 [2, 2, 4]", "blocks.0.filter.w2 [2, 2, 4, 4]",
                         "blocks.0.filter.b2 [2, 2, 4]", "blocks.0.norm2.weight [8]",
                         "blocks.0.norm2.bias [8]", "blocks.0.mlp.fc1.weight [32, 8]",
                         "blocks.0.mlp.fc1.bias [32]", "blocks.0.mlp.fc2.weight [8, 32]",
                         "blocks.0.mlp.fc2.bias [8]", "head.weight [8, 8]"));
}

TEST(AfnoTest, DefaultsAndInitialValuesAreThePeers) {
  const AFNOOptions options({32, 32}, 2, 1);
  EXPECT_THAT(options.patch_size(), ElementsAre(16, 16));
  EXPECT_EQ(options.embed_dim(), 256);
  EXPECT_EQ(options.depth(), 4);
  EXPECT_EQ(options.mlp_ratio(), 4);
  EXPECT_EQ(options.drop_rate(), 0);
  EXPECT_EQ(options.num_blocks(), 16);
  EXPECT_EQ(options.sparsity_threshold(), 0.01);
  EXPECT_EQ(options.hard_thresholding_fraction(), 1);

  at::manual_seed(1);
  AFNO model(options);
  const Parameters p = model->named_parameters();
  for (const char* name : {"pos_embed", "blocks.3.filter.w1", "blocks.0.mlp.fc1.weight",
                           "blocks.1.mlp.fc2.weight", "head.weight"}) {
    EXPECT_NEAR(p[name].std().item<double>(), 0.02, 2e-3) << name;
  }
  EXPECT_EQ(p["blocks.0.mlp.fc1.bias"].abs().max().item<double>(), 0);
  EXPECT_EQ(p["blocks.0.norm1.weight"].min().item<double>(), 1);
  const double bound = 1 / std::sqrt(2.0 * 16 * 16);
  EXPECT_NEAR(p["patch_embed.proj.weight"].abs().max().item<double>(), bound, bound * 1e-2);
  at::manual_seed(1);
  EXPECT_TRUE(at::equal(AFNO(options)->named_parameters()["head.weight"], p["head.weight"]));
}

TEST(AfnoTest, EqualsItsFormulas) {
  std::vector<AFNOOptions> cases = {
      small(),                                        // wider than high
      small().hard_thresholding_fraction(0.5),        //
      small().hard_thresholding_fraction(0),          //
      small().sparsity_threshold(0.3).num_blocks(8),  //
      AFNOOptions({15, 6}, 1, 1).patch_size({3, 2}).embed_dim(6).depth(1).num_blocks(3),
      AFNOOptions({5, 7}, 2, 3)
          .patch_size({1, 1})
          .embed_dim(4)
          .depth(1)
          .num_blocks(1)
          .mlp_ratio(1.5),
  };
  for (const AFNOOptions& options : cases) {
    AFNO model = model_of(options);
    const Tensor x = at::randn(
        {2, options.in_channels(), options.inp_shape()[0], options.inp_shape()[1]}, at::kDouble);
    const Tensor y = model(x);
    const Tensor wanted = expected(x, model->named_parameters(), options);
    ASSERT_EQ(y.sizes(), wanted.sizes());
    EXPECT_LT(((y - wanted).norm() / wanted.norm()).item<double>(), 1e-12) << options.inp_shape();
  }
}

// As torch.nn.init.trunc_normal_ draws.
void trunc_normal(const Tensor& tensor) {
  tensor.uniform_(-1, 1).erfinv_().mul_(0.02 * std::sqrt(2.0)).clamp_(-2, 2);
}

// The values that PhysicsNeMo's own test compared its AFNO with until PyTorch 2.12 drew truncated
// normals otherwise (test/models/afno/data/afno_output.pth before that commit). Its parameters and
// input come from seed 0, in the order in which its constructor draws.
TEST(AfnoTest, EqualsThePeersStoredOutput) {
  AFNO model(AFNOOptions({32, 32}, 2, 1).patch_size({8, 8}).embed_dim(16).depth(2).num_blocks(2));
  const at::NoGradGuard no_grad;
  const Parameters p = model->named_parameters();
  at::manual_seed(0);
  const auto uniform = [](const Tensor& weight, int64_t inputs, const Tensor& bias) {
    const double bound = 1 / std::sqrt(static_cast<double>(inputs));
    weight.uniform_(-bound, bound);
    if (bias.defined()) bias.uniform_(-bound, bound);
  };
  uniform(p["patch_embed.proj.weight"], 2 * 8 * 8, p["patch_embed.proj.bias"]);
  const std::vector<std::string> blocks = {"blocks.0.", "blocks.1."};
  for (const std::string& block : blocks) {
    for (const char* name : {"w1", "b1", "w2", "b2"}) {
      const Tensor& parameter = p[block + "filter." + name];
      parameter.copy_(at::randn(parameter.sizes()) * 0.02);
    }
    for (const char* name : {"mlp.fc1.", "mlp.fc2."}) {
      const Tensor& weight = p[block + name + "weight"];
      uniform(weight, weight.size(1), p[block + name + "bias"]);
    }
  }
  uniform(p["head.weight"], 16, {});
  trunc_normal(p["pos_embed"]);
  for (const std::string& block : blocks) {
    for (const char* name : {"mlp.fc1.", "mlp.fc2."}) {
      trunc_normal(p[block + name + "weight"]);
      p[block + name + "bias"].zero_();
    }
  }
  trunc_normal(p["head.weight"]);
  const Tensor x = at::randn({2, 2, 32, 32});
  const Tensor y = model(x).flatten();
  const Tensor some = at::cat({y.slice(0, 0, 4), y.slice(0, 1000, 1003), y.slice(0, 2045)});
  const Tensor wanted =
      at::tensor({-0.040111955, -0.002141522, -0.246748671, 0.112145163, -0.252020568, 0.026661040,
                  -0.010482452, -0.101863049, 0.473464876, 0.331810027});
  EXPECT_TRUE(at::allclose(some.to(at::kDouble), wanted.to(at::kDouble), 1e-5, 1e-6)) << some;
  EXPECT_NEAR(y.norm().item<double>(), 9.278617141, 1e-5);
}

TEST(AfnoTest, GradientsAreDifferenceQuotients) {
  AFNO model = model_of(small().hard_thresholding_fraction(0.8));
  const Tensor x = at::randn({2, 3, 8, 12}, at::kDouble).requires_grad_();
  const Tensor weight = at::randn({2, 2, 8, 12}, at::kDouble);
  std::vector<Tensor> inputs = model->parameters();
  inputs.push_back(x);
  const auto loss = [&] { return (model(x) * weight).sum(); };
  const std::vector<Tensor> gradients = torch::autograd::grad({loss()}, inputs);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor direction = at::randn_like(inputs[i]);
    constexpr double kStep = 1e-6;
    inputs[i].add_(direction, kStep);
    const double above = loss().item<double>();
    inputs[i].sub_(direction, 2 * kStep);
    const double below = loss().item<double>();
    inputs[i].add_(direction, kStep);
    const double analytic = (gradients[i] * direction).sum().item<double>();
    const double numeric = (above - below) / (2 * kStep);
    EXPECT_NEAR(numeric, analytic, 1e-5 * std::max(1.0, std::abs(analytic))) << i;
  }
}

TEST(AfnoTest, TakesOtherDtypes) {
  AFNO model(small());
  const Tensor x = at::randn({1, 3, 8, 12});
  const Tensor y = model(x);
  model->to(at::kBFloat16);
  const Tensor rounded = model(x.to(at::kBFloat16));
  EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
  EXPECT_LT(((rounded.to(at::kFloat) - y).norm() / y.norm()).item<double>(), 0.05);
}

TEST(AfnoTest, UnderAutocastItsModesStayInFloat32) {
  AFNO model(small());
  const Tensor x = at::randn({2, 3, 8, 12});
  const Tensor exact = model(x).detach();
  const Tensor y = in_bfloat16(c10::kCPU, [&] { return model(x); });
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  const double distance = ((y.detach() - exact).norm() / exact.norm()).item<double>();
  EXPECT_LT(distance, 0.05);
  EXPECT_GT(distance, 1e-6) << "nothing was computed in bfloat16";
  y.square().sum().backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat) << item.key();
    EXPECT_TRUE(at::isfinite(item.value().grad()).all().item<bool>()) << item.key();
  }
}

TEST(AfnoTest, DropsInTrainingOnly) {
  AFNO model(small().drop_rate(0.5));
  const Tensor x = at::randn({1, 3, 8, 12});
  at::manual_seed(3);
  const Tensor first = model(x);
  EXPECT_FALSE(at::equal(first, model(x)));
  at::manual_seed(3);
  EXPECT_TRUE(at::equal(first, model(x)));
  model->eval();
  EXPECT_TRUE(at::equal(model(x), model(x)));
}

TEST(AfnoTest, WrongOptionsAndInputsAreErrorsWithBothSidesValues) {
  const auto error = [](const AFNOOptions& options, const char* text) {
    EXPECT_THAT([&] { AFNO model(options); }, ThrowsMessage<c10::ValueError>(HasSubstr(text)));
  };
  error(AFNOOptions({8}, 1, 1), "inp_shape should be a list of length 2, got [8]");
  error(small().patch_size({2}), "patch_size should be a list of length 2");
  error(small().patch_size({3, 2}), "input shape [8, 12] should be divisible by patch_size [3, 2]");
  error(small().patch_size({0, 2}), "must be positive");
  error(small().num_blocks(3), "hidden_size 8 should be divisible by num_blocks 3");
  error(small().num_blocks(0), "must be positive");
  error(small().embed_dim(-8), "at least 1");
  error(small().depth(0), "depth must be positive");
  error(small().mlp_ratio(0), "at least 1");
  error(small().drop_rate(1.5), "between 0 and 1");
  error(small().hard_thresholding_fraction(1.1), "between 0 and 1");
  error(small().sparsity_threshold(-1), "must not be negative");
  AFNO model(small());
  EXPECT_THAT(
      [&] {
        model(at::randn({1, 3, 8, 8}));
      },
      ThrowsMessage<c10::ValueError>(
          HasSubstr("Expected input shape (B, 3, 8, 12), got [1, 3, 8, 8]")));
  EXPECT_THROW(model(Tensor()), c10::ValueError);
  EXPECT_THROW(model(at::randn({1, 3, 8, 12}, at::kDouble)), c10::ValueError);
}

TEST(AfnoTest, OptionsTakeIntegersForIntegers) {
  EXPECT_TAKES_INTEGERS_ONLY(AFNOOptions({8, 8}, value, 1));
  EXPECT_TAKES_INTEGERS_ONLY(AFNOOptions({8, 8}, 1, value));
  EXPECT_TAKES_INTEGERS_ONLY(AFNOOptions({8, 8}, 1, 1).embed_dim(value));
  EXPECT_TAKES_INTEGERS_ONLY(AFNOOptions({8, 8}, 1, 1).depth(value));
  EXPECT_TAKES_INTEGERS_ONLY(AFNOOptions({8, 8}, 1, 1).num_blocks(value));
}

TEST(AfnoPlanTest, TheWindowOfModesIsThePeers) {
  const auto window = [](int64_t h, int64_t w, double fraction) {
    const detail::ModeWindow kept = detail::mode_window(h, w, fraction);
    return std::vector<int64_t>{kept.rows.begin, kept.rows.end, kept.columns.begin,
                                kept.columns.end};
  };
  EXPECT_THAT(window(8, 8, 1), ElementsAre(0, 8, 0, 5));
  EXPECT_THAT(window(8, 16, 1), ElementsAre(0, 8, 0, 5));  // of 9
  EXPECT_THAT(window(8, 8, 0.5), ElementsAre(3, 7, 0, 2));
  EXPECT_THAT(window(8, 2, 0.5), ElementsAre(3, 7, 0, 2));
  EXPECT_THAT(window(8, 8, 0), ElementsAre(5, 5, 0, 0));
  EXPECT_THAT(window(1, 1, 0.9), ElementsAre(1, 1, 0, 0));
  const SplitRange inner = detail::relative_overlap({3, 7}, {4, 8});
  EXPECT_THAT((std::vector<int64_t>{inner.begin, inner.end}), ElementsAre(0, 3));
  for (const SplitRange& apart : {SplitRange{0, 2}, SplitRange{9, 12}}) {
    EXPECT_EQ(detail::relative_overlap(apart, {4, 8}).size(), 0);
  }
}

}  // namespace
}  // namespace meshrun
