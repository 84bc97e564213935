// Operators with windows and norms beyond what their cases in cases/ compare: derivatives of higher
// order, wrong calls, memory formats, narrow dtypes.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "parallel/manager/distributed_manager.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/shard_tensor.h"
#include "tests/parallel/collectives/worlds.h"
#include "tests/parallel/support/gradcheck.h"
#include "tests/parallel/support/rank_processes.h"

namespace meshrun {
namespace {

using at::Tensor;

ShardMesh::Ptr line_of(const JoinedWorld& world) {
  return ShardMesh::of(world.manager.initialize_mesh({world.size}, {"domain"}));
}

// Dimension `dim` cut into pieces of these sizes.
SpecPtr cut(const ShardMesh::Ptr& mesh, std::vector<int64_t> shape, int64_t dim,
            const std::vector<int64_t>& sizes) {
  std::vector<DimCut> cuts;
  for (const int64_t extent : shape) cuts.push_back({{}, {extent}});
  cuts[static_cast<size_t>(dim)] = {{0}, sizes};
  return make_spec(mesh, ShardLayout::with_cuts(mesh->shape(), {Shard(dim)}, cuts));
}

const bool kDerivatives = register_rank_function("window_derivatives", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = line_of(world);
  // One rank has no rows, and no outputs.
  const SpecPtr spec = cut(mesh, {1, 2, 6}, 2, {4, 0, 2});
  const Tensor weight = at::arange(1, 13, at::kDouble).view({2, 2, 3}) / 7;
  const Tensor upward = at::arange(1, 9, at::kDouble).view({2, 2, 2}) / 5;
  const auto on_pieces = [&](const std::function<Tensor(const Tensor&)>& function) -> RankFunction {
    return [&, function](const std::vector<Tensor>& inputs) {
      const Tensor y = to_local(function(from_local(inputs[0], spec)));
      return std::vector<Tensor>{y * y};
    };
  };
  const Tensor x =
      (at::arange(2 * spec->local_shape()[2], at::kDouble).view({1, 2, -1}) / 11 + world.rank + 0.3)
          .requires_grad_();
  const auto check = [&](const char* name, const std::function<Tensor(const Tensor&)>& function) {
    SCOPED_TRACE(name);
    const RankFunction of_pieces = on_pieces(function);
    EXPECT_EQ(gradcheck(world.manager.world(), of_pieces, {x}), "");
    EXPECT_EQ(gradgradcheck(world.manager.world(), of_pieces, {x}), "");
  };
  check("conv1d", [&](const Tensor& t) { return at::conv1d(t, weight, {}, 1, 1); });
  check("conv_transpose1d",
        [&](const Tensor& t) { return at::conv_transpose1d(t, upward, {}, 2, 1); });
  check("max_pool1d", [&](const Tensor& t) { return at::max_pool1d(t, 2, 2); });
  check("padded max_pool1d", [&](const Tensor& t) { return at::max_pool1d(t, 3, 2, 1); });
  check("adaptive_max_pool1d",
        [&](const Tensor& t) { return std::get<0>(at::adaptive_max_pool1d(t, 4)); });
  check("adaptive_avg_pool1d", [&](const Tensor& t) { return at::adaptive_avg_pool1d(t, 4); });
  check("avg_pool1d", [&](const Tensor& t) { return at::avg_pool1d(t, 3, 2, 1); });
  check("upsample_linear1d", [&](const Tensor& t) {
    return at::upsample_linear1d(t, std::vector<int64_t>{9}, false, std::optional<double>());
  });
  check("antialiased", [&](const Tensor& t) {
    return at::_upsample_bicubic2d_aa(t.unsqueeze(3), {4, 2}, false, std::nullopt, std::nullopt);
  });
  check("pad", [&](const Tensor& t) { return at::pad(t, {2, 1}, "reflect"); });
});
TEST(WindowOperatorsTest, DerivativesOfAnyOrderAlsoWhereARankHasNothing) {
  expect_success(run_ranks("window_derivatives", env_ranks(3)));
}

const bool kWeights = register_rank_function("window_weights", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = line_of(world);
  const Tensor whole = (at::arange(2 * 2 * 7 * 5, at::kFloat).view({2, 2, 7, 5}) % 11 - 5) / 4;
  const Tensor kernel = (at::arange(3 * 2 * 3 * 2, at::kFloat).view({3, 2, 3, 2}) % 7 - 3) / 4;
  const SpecPtr spec = cut(mesh, {2, 2, 7, 5}, 2, {3, 4});
  const Tensor part = whole.narrow(2, spec->box().offsets[2], spec->local_shape()[2])
                          .contiguous(at::MemoryFormat::ChannelsLast);
  const Tensor w = kernel.clone().requires_grad_();
  const Tensor same = kernel.clone().requires_grad_();
  const Tensor y = at::conv2d(ShardTensor(part, spec), w, {}, 2, 1);
  const Tensor expected = at::conv2d(whole, same, {}, 2, 1);
  y.square().sum().backward();
  expected.square().sum().backward();
  EXPECT_TRUE(at::allclose(ShardTensor(y).full_tensor(), expected, 1e-5, 1e-5));
  // A plain weight's gradient is plain, and whole.
  EXPECT_FALSE(is_shard_tensor(w.grad()));
  EXPECT_TRUE(at::allclose(w.grad(), same.grad(), 1e-5, 1e-4));
});
TEST(WindowOperatorsTest, APlainWeightGetsTheWholeGradient) {
  expect_success(run_ranks("window_weights", env_ranks(2)));
}

// A second call with the same arguments on a tensor of the same spec plans nothing, and has the
// same result; another argument is another plan.
const bool kPlannedOnce = register_rank_function("window_plans", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = line_of(world);
  const SpecPtr spec = cut(mesh, {2, 2, 7, 5}, 2, {3, 4});
  const Tensor whole = at::arange(2 * 2 * 7 * 5, at::kDouble).view({2, 2, 7, 5}) / 8;
  const Tensor part = whole.narrow(2, spec->box().offsets[2], spec->local_shape()[2]).clone();
  const Tensor kernel = at::arange(3 * 2 * 3 * 2, at::kDouble).view({3, 2, 3, 2}) / 4;
  const auto expect_planned = [&](int64_t plans, const char* name,
                                  const std::function<Tensor(const Tensor&)>& call) {
    SCOPED_TRACE(name);
    const int64_t made = WindowPlan::num_made();
    for (int i = 0; i < 3; ++i) {
      const ShardTensor x(part, spec);
      EXPECT_TRUE(at::allclose(ShardTensor(call(x)).full_tensor(), call(whole)));
    }
    EXPECT_EQ(WindowPlan::num_made() - made, plans);
  };
  const auto convolve = [&](int64_t stride, int64_t padding) {
    return [&, stride, padding](const Tensor& x) {
      return at::conv2d(x, kernel, {}, stride, padding);
    };
  };
  expect_planned(1, "conv2d", convolve(1, 1));
  expect_planned(0, "conv2d again", convolve(1, 1));
  expect_planned(1, "another stride", convolve(2, 1));
  expect_planned(1, "another padding", convolve(1, 0));
  const auto pool = [](const Tensor& x) { return at::max_pool2d(x, {3, 2}, {1, 1}, {1, 0}); };
  expect_planned(1, "max_pool2d", pool);
  expect_planned(1, "avg_pool2d", [](const Tensor& x) { return at::avg_pool2d(x, {2, 2}); });
  const auto widen = [](std::vector<int64_t> by) {
    return [by = std::move(by)](const Tensor& x) { return at::pad(x, by, "reflect"); };
  };
  expect_planned(1, "pad", widen({1, 1, 2, 0}));
  expect_planned(1, "another pad", widen({1, 1, 0, 2}));
  const auto stretch = [](int64_t rows, std::optional<double> scale) {
    return [rows, scale](const Tensor& x) {
      return at::upsample_bilinear2d(x, std::vector<int64_t>{rows, 5}, false, scale, scale);
    };
  };
  expect_planned(1, "upsample", stretch(14, std::nullopt));
  expect_planned(1, "another extent", stretch(9, std::nullopt));
  expect_planned(1, "adaptive", [](const Tensor& x) { return at::adaptive_avg_pool2d(x, {4, 3}); });
});
TEST(WindowOperatorsTest, PlansAreKeptWithTheSpec) {
  expect_success(run_ranks("window_plans", env_ranks(2)));
}

// Sums of 16-bit floats that these could not hold, and integers; LibTorch's values.
const bool kNarrow = register_rank_function("window_dtypes", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = line_of(world);
  const SpecPtr spec = cut(mesh, {1, 2, 10, 6}, 2, {7, 3});
  const auto compare = [&](const Tensor& whole, const std::function<Tensor(const Tensor&)>& call) {
    const Tensor part =
        whole.narrow(2, spec->box().offsets[2], spec->local_shape()[2]).contiguous();
    const Tensor is = ShardTensor(call(ShardTensor(part, spec))).full_tensor();
    const Tensor should = call(whole);
    EXPECT_EQ(is.scalar_type(), should.scalar_type());
    EXPECT_TRUE(at::equal(is, should)) << is << should;
  };
  const Tensor ramp = at::arange(120, at::kFloat).view({1, 2, 10, 6});
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensor large = (ramp + 4000).to(dtype);
    compare(large, [](const Tensor& x) { return at::avg_pool2d(x, {5, 5}, {2, 1}, {1, 1}); });
    compare(large, [](const Tensor& x) {
      return at::avg_pool2d(x, {5, 5}, {2, 1}, {1, 1}, false, false);
    });
    compare(large, [](const Tensor& x) {
      return at::avg_pool2d(x, {5, 5}, {2, 1}, {1, 1}, false, true, 7);
    });
    compare(at::full_like(large, 3), [](const Tensor& x) {
      return at::adaptive_avg_pool2d(x, {4, 6});
    });
  }
  const Tensor integers = (ramp - 60).to(at::kLong);
  compare(integers, [](const Tensor& x) { return at::avg_pool2d(x, {3, 2}, {2, 1}, {1, 0}); });
  const ShardTensor x(at::ones(spec->local_shape(), at::kInt), spec);
  expect_error_on_all_ranks([&] { at::avg_pool2d(x, {3, 2}); }, "not implemented for 'Int'");
  expect_error_on_all_ranks([&] { at::adaptive_avg_pool2d(x, {3, 2}); }, "not implemented for Int");
});
TEST(WindowOperatorsTest, AveragesAreThoseOfLibTorchInNarrowDtypes) {
  expect_success(run_ranks("window_dtypes", env_ranks(2)));
}

// The default eps is that of the dtype that LibTorch computes in.
const bool kEps = register_rank_function("rms_norm_eps", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = line_of(world);
  const SpecPtr spec = cut(mesh, {3, 6}, 1, {4, 2});
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensor whole = at::full({3, 6}, 0.01, at::kDouble).to(dtype);
    const ShardTensor x(whole.narrow(1, spec->box().offsets[1], spec->local_shape()[1]).clone(),
                        spec);
    const Tensor is = ShardTensor(at::rms_norm(x, {6})).full_tensor();
    const Tensor should = at::rms_norm(whole, {6});
    EXPECT_EQ(is.scalar_type(), should.scalar_type());
    EXPECT_TRUE(at::allclose(is.to(at::kDouble), should.to(at::kDouble), 1e-5, 1e-5))
        << is << should;
    EXPECT_NEAR(is[0][0].item<double>(), 1.0, 1e-2);
  }
});
TEST(WindowOperatorsTest, RmsNormHasLibTorchsDefaultEps) {
  expect_success(run_ranks("rms_norm_eps", env_ranks(2)));
}

// Infinities and NaNs go where LibTorch's kernels for the whole image carry them. Ratios of extents
// are exact: a weight of zero is then one on every CPU.
const bool kInfinities = register_rank_function("window_infinities", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = line_of(world);
  const double infinity = std::numeric_limits<double>::infinity();
  struct Call {
    const char* name;
    std::function<Tensor(const Tensor&, at::IntArrayRef)> call;
    std::vector<int64_t> to;
  };
  const auto linear = [](const Tensor& x, at::IntArrayRef to) {
    return at::upsample_bilinear2d(x, to, false);
  };
  const auto cubic = [](const Tensor& x, at::IntArrayRef to) {
    return at::upsample_bicubic2d(x, to, false);
  };
  const auto antialiased = [](const Tensor& x, at::IntArrayRef to) {
    return at::_upsample_bilinear2d_aa(x, to, false);
  };
  const Call calls[] = {
      {"nearest",
       [](const Tensor& x, at::IntArrayRef to) { return at::upsample_nearest2d(x, to); },
       {14, 11}},
      {"linear", linear, {14, 16}},
      {"linear, one extent", linear, {7, 16}},
      {"aligned linear",
       [](const Tensor& x, at::IntArrayRef to) { return at::upsample_bilinear2d(x, to, true); },
       {13, 15}},
      {"cubic", cubic, {14, 16}},
      {"cubic, less", cubic, {14, 4}},
      {"antialiased linear", antialiased, {14, 4}},
      {"antialiased linear, one extent", antialiased, {7, 4}},
      {"antialiased cubic",
       [](const Tensor& x, at::IntArrayRef to) { return at::_upsample_bicubic2d_aa(x, to, false); },
       {14, 4}},
      {"averages",
       [](const Tensor& x, at::IntArrayRef to) { return at::adaptive_avg_pool2d(x, to); },
       {3, 4}},
      {"an average",
       [](const Tensor& x, at::IntArrayRef to) { return at::adaptive_avg_pool2d(x, to); },
       {1, 5}},
  };
  for (const double value : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    for (const int64_t dim : {2, 3}) {
      const SpecPtr spec = cut(mesh, {1, 2, 7, 8}, dim,
                               dim == 2 ? std::vector<int64_t>{4, 3} : std::vector<int64_t>{3, 5});
      for (const int64_t row : {0, 3, 4}) {
        Tensor whole = at::arange(112, at::kDouble).view({1, 2, 7, 8}) / 16;
        whole[0][1][row][2] = value;
        const auto d = static_cast<size_t>(dim);
        const Tensor part =
            whole.narrow(dim, spec->box().offsets[d], spec->local_shape()[d]).contiguous();
        for (const auto& [name, call, to] : calls) {
          const Tensor is = ShardTensor(call(ShardTensor(part, spec), to)).full_tensor();
          EXPECT_TRUE(at::allclose(is, call(whole, to), 1e-10, 1e-10, /*equal_nan=*/true))
              << name << " of " << value << " in row " << row << ", dimension " << dim << " cut";
        }
      }
    }
  }
});
TEST(WindowOperatorsTest, InfinitiesGoWhereLibTorchHasThem) {
  expect_success(run_ranks("window_infinities", env_ranks(2)));
}

const bool kWrong = register_rank_function("window_wrong", [] {
  const JoinedWorld world;
  const ShardMesh::Ptr mesh = line_of(world);
  const SpecPtr spec = cut(mesh, {1, 2, 6}, 2, {4, 2});
  const ShardTensor x(at::ones(spec->local_shape()), spec);
  const auto expect = [&](const std::function<void()>& call, const char* part) {
    expect_error_on_all_ranks(call, part);
  };
  expect([&] { at::convolution(x, at::ones({2, 3, 3}), {}, 1, 0, 1, false, 0, 1); }, "do not fit");
  expect([&] { at::convolution(x, at::ones({2, 2, 9}), {}, 1, 1, 1, false, 0, 1); }, "too small");
  expect(
      [&] {
        at::convolution(x, at::ones({2, 2, 3}), at::ones({3}), 1, 0, 1, false, 0, 1);
      },
      "a bias of [3]");
  expect([&] { at::convolution(x, at::ones({2, 2, 3}), {}, 0, 0, 1, false, 0, 1); }, "stride 0");
  expect([&] { at::max_pool1d(x, 3, 2, 2); }, "pooling: kernel 3");
  expect([&] { at::adaptive_avg_pool1d(x, 0); }, "adaptive pooling");
  expect([&] { at::upsample_nearest1d(x, std::vector<int64_t>{0}, std::optional<double>()); },
         "interpolation");
  expect([&] { at::reflection_pad1d(x, {6, 0}); }, "pad: 6 and 0 for an extent of 6");
});
TEST(WindowOperatorsTest, AWrongCallIsOneErrorOnAllRanks) {
  expect_success(run_ranks("window_wrong", env_ranks(2)));
}

}  // namespace
}  // namespace meshrun
