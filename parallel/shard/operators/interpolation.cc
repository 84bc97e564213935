// Interpolation. Every mode is a product of one-dimensional ones: whole dimensions go through
// LibTorch's kernel, cut ones through the taps of each output (positions and weights, computed as
// LibTorch computes them for the whole tensor).
#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "ATen/native/UpSample.h"
#include "ATen/ops/_upsample_nearest_exact1d.h"
#include "ATen/ops/_upsample_nearest_exact2d.h"
#include "ATen/ops/_upsample_nearest_exact3d.h"
#include "ATen/ops/index_select.h"
#include "ATen/ops/upsample_bicubic2d.h"
#include "ATen/ops/upsample_bilinear2d.h"
#include "ATen/ops/upsample_linear1d.h"
#include "ATen/ops/upsample_nearest1d.h"
#include "ATen/ops/upsample_nearest2d.h"
#include "ATen/ops/upsample_nearest3d.h"
#include "ATen/ops/upsample_trilinear3d.h"
#include "c10/util/SmallVector.h"
#include "fmt/format.h"
#include "parallel/base/traced_calls.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

enum class Mode : uint8_t { kNearest, kNearestExact, kLinear, kCubic };
using Scale = std::optional<double>;

// The rule of window plans whose key has the mode, the extents and the scales.
const char kInterpolationRule = 0;

// What an output of one dimension is a weighted sum of.
struct Taps {
  int64_t count = 1;
  std::array<int64_t, 4> positions{};
  std::array<double, 4> weights{1};
};

struct Interpolation {
  Mode mode;
  bool align_corners;
  // LibTorch computes positions in the tensor's dtype.
  bool in_double;

  Taps taps(int64_t output, int64_t inputs, int64_t outputs, Scale scale) const;
};

template <typename Number>
Taps linear_taps(const Interpolation& how, int64_t output, int64_t inputs, int64_t outputs,
                 Scale scale) {
  Taps taps{2};
  Number first = 0, second = 0;
  const auto ratio =
      at::native::area_pixel_compute_scale<Number>(inputs, outputs, how.align_corners, scale);
  at::native::compute_source_index_and_lambda<Number, Number>(taps.positions[0], taps.positions[1],
                                                              first, second, ratio, output, inputs,
                                                              outputs, how.align_corners);
  taps.weights = {first, second};
  return taps;
}

template <typename Number>
Taps cubic_taps(const Interpolation& how, int64_t output, int64_t inputs, int64_t outputs,
                Scale scale) {
  Taps taps{4};
  const auto ratio =
      at::native::area_pixel_compute_scale<Number>(inputs, outputs, how.align_corners, scale);
  const auto place = at::native::area_pixel_compute_source_index<Number>(
      ratio, output, how.align_corners, /*cubic=*/true);
  int64_t base = 0;
  Number fraction = 0;
  at::native::guard_index_and_lambda(place, inputs, base, fraction);
  Number weights[4];
  at::native::get_cubic_upsample_coefficients<Number>(weights, fraction);
  for (int64_t j = 0; j < 4; ++j) {
    taps.positions[static_cast<size_t>(j)] = std::clamp<int64_t>(base - 1 + j, 0, inputs - 1);
    taps.weights[static_cast<size_t>(j)] = weights[j];
  }
  return taps;
}

Taps Interpolation::taps(int64_t output, int64_t inputs, int64_t outputs, Scale scale) const {
  switch (mode) {
    case Mode::kNearest:
      return {1, {at::native::nearest_idx(output, inputs, outputs, scale)}, {1}};
    case Mode::kNearestExact:
      return {1, {at::native::nearest_exact_idx(output, inputs, outputs, scale)}, {1}};
    case Mode::kLinear:
      return in_double ? linear_taps<double>(*this, output, inputs, outputs, scale)
                       : linear_taps<float>(*this, output, inputs, outputs, scale);
    case Mode::kCubic:
      break;
  }
  return in_double ? cubic_taps<double>(*this, output, inputs, outputs, scale)
                   : cubic_taps<float>(*this, output, inputs, outputs, scale);
}

WindowedDim windows_of(const Interpolation& how, int64_t inputs, int64_t outputs, Scale scale) {
  return {outputs, [=](int64_t output) {
            const Taps taps = how.taps(output, inputs, outputs, scale);
            const auto begin = taps.positions.begin();
            const auto [least, most] = std::minmax_element(begin, begin + taps.count);
            return SplitRange{*least, *most + 1};
          }};
}

// This rank's outputs along a cut dimension, from the range that it gathered.
at::Tensor interpolate_cut(const at::Tensor& gathered, const WindowPlan::Cut& cut,
                           const Interpolation& how, int64_t inputs, int64_t outputs, Scale scale) {
  std::vector<std::vector<int64_t>> positions(4);
  std::vector<std::vector<double>> weights(4);
  int64_t count = 0;
  for (int64_t output = cut.owned.begin; output < cut.owned.end; ++output) {
    const Taps taps = how.taps(output, inputs, outputs, scale);
    count = taps.count;
    for (size_t j = 0; j < static_cast<size_t>(count); ++j) {
      positions[j].push_back(taps.positions[j] - cut.range.begin);
      weights[j].push_back(taps.weights[j]);
    }
  }
  std::vector<int64_t> along(static_cast<size_t>(gathered.dim()), 1);
  along[static_cast<size_t>(cut.dim)] = cut.owned.size();
  at::Tensor sum;
  for (size_t j = 0; j < static_cast<size_t>(count); ++j) {
    const at::Tensor picked =
        gathered.index_select(cut.dim, constant(positions[j]).to(gathered.device()));
    if (count == 1) return picked;
    const at::Tensor weight = constant(weights[j]).to(gathered.options()).view(along);
    sum = sum.defined() ? sum + picked * weight : picked * weight;
  }
  return sum;
}

// LibTorch's kernel on whole dimensions.
at::Tensor interpolate_locally(const at::Tensor& local, at::IntArrayRef size,
                               const Interpolation& how, const std::vector<Scale>& scales) {
  const bool align = how.align_corners;
  if (how.mode == Mode::kCubic) {
    return at::upsample_bicubic2d(local, size, align, scales[0], scales[1]);
  }
  if (size.size() == 1) {
    if (how.mode == Mode::kLinear) return at::upsample_linear1d(local, size, align, scales[0]);
    return how.mode == Mode::kNearest ? at::upsample_nearest1d(local, size, scales[0])
                                      : at::_upsample_nearest_exact1d(local, size, scales[0]);
  }
  if (size.size() == 2) {
    if (how.mode == Mode::kLinear) {
      return at::upsample_bilinear2d(local, size, align, scales[0], scales[1]);
    }
    return how.mode == Mode::kNearest
               ? at::upsample_nearest2d(local, size, scales[0], scales[1])
               : at::_upsample_nearest_exact2d(local, size, scales[0], scales[1]);
  }
  if (how.mode == Mode::kLinear) {
    return at::upsample_trilinear3d(local, size, align, scales[0], scales[1], scales[2]);
  }
  return how.mode == Mode::kNearest
             ? at::upsample_nearest3d(local, size, scales[0], scales[1], scales[2])
             : at::_upsample_nearest_exact3d(local, size, scales[0], scales[1], scales[2]);
}

void check(const at::Tensor& self, at::IntArrayRef size, size_t dims) {
  bool is_valid = self.dim() == static_cast<int64_t>(dims) + 2 && size.size() == dims;
  for (size_t i = 0; i < dims && is_valid; ++i) {
    is_valid = size[i] > 0 && self.size(static_cast<int64_t>(i) + 2) > 0;
  }
  if (!is_valid) {
    throw ShardTensorError(
        fmt::format("interpolation: a tensor of {} to {}", to_words(self.sizes()), to_words(size)));
  }
}

at::Tensor interpolate(const at::Tensor& self, at::IntArrayRef size, Mode mode, bool align_corners,
                       std::vector<Scale> scales) {
  const size_t dims = scales.size();
  check(self, size, dims);
  const Interpolation how{mode, align_corners, self.scalar_type() == at::kDouble};
  // Weighted sums of integers are rounded in ways of their own.
  const bool cuts = at::isFloatingType(self.scalar_type()) || mode == Mode::kNearest ||
                    mode == Mode::kNearestExact;
  std::vector<int64_t> whole;
  c10::SmallVector<int64_t, 24> key = {rule_number(&kInterpolationRule), static_cast<int64_t>(mode),
                                       int64_t{how.align_corners}, int64_t{how.in_double}};
  for (size_t i = 0; i < dims; ++i) {
    if (!cuts) whole.push_back(static_cast<int64_t>(i) + 2);
    key.append(
        {size[i], int64_t{scales[i].has_value()}, std::bit_cast<int64_t>(scales[i].value_or(0.0))});
  }
  const SpecPtr spec = windowed_spec(spec_of(self), whole);
  const WindowPlan plan(spec, {.first = 2}, key, [&] {
    std::vector<WindowedDim> windows;
    for (size_t i = 0; i < dims; ++i) {
      const int64_t dim = static_cast<int64_t>(i) + 2;
      windows.push_back(windows_of(how, self.size(dim), size[i], scales[i]));
    }
    return windows;
  });
  at::Tensor result = plan.gather(to_local(redistribute(self, spec)));
  if (!plan.computes()) return from_local(plan.nothing(result, false), plan.result());
  const bool in_float = at::isReducedFloatingType(self.scalar_type()) && !plan.cuts().empty();
  if (in_float) result = result.to(at::kFloat);
  if (plan.cuts().size() < dims) {
    std::vector<int64_t> extents = size.vec();
    std::vector<Scale> local_scales = scales;
    for (const WindowPlan::Cut& cut : plan.cuts()) {
      extents[static_cast<size_t>(cut.dim - 2)] = result.size(cut.dim);
      local_scales[static_cast<size_t>(cut.dim - 2)] = std::nullopt;
    }
    result = interpolate_locally(result, extents, how, local_scales);
  }
  for (const WindowPlan::Cut& cut : plan.cuts()) {
    const auto i = static_cast<size_t>(cut.dim - 2);
    result = interpolate_cut(result, cut, how, self.size(cut.dim), size[i], scales[i]);
  }
  if (in_float) result = result.to(self.scalar_type());
  return from_local(result, plan.result());
}

template <Mode mode>
at::Tensor nearest1d(const at::Tensor& self, at::IntArrayRef size, Scale scale) {
  return interpolate(self, size, mode, false, {scale});
}
template <Mode mode>
at::Tensor nearest2d(const at::Tensor& self, at::IntArrayRef size, Scale high, Scale wide) {
  return interpolate(self, size, mode, false, {high, wide});
}
template <Mode mode>
at::Tensor nearest3d(const at::Tensor& self, at::IntArrayRef size, Scale deep, Scale high,
                     Scale wide) {
  return interpolate(self, size, mode, false, {deep, high, wide});
}
at::Tensor linear1d(const at::Tensor& self, at::IntArrayRef size, bool align, Scale scale) {
  return interpolate(self, size, Mode::kLinear, align, {scale});
}
template <Mode mode>
at::Tensor smooth2d(const at::Tensor& self, at::IntArrayRef size, bool align, Scale high,
                    Scale wide) {
  return interpolate(self, size, mode, align, {high, wide});
}
at::Tensor linear3d(const at::Tensor& self, at::IntArrayRef size, bool align, Scale deep,
                    Scale high, Scale wide) {
  return interpolate(self, size, Mode::kLinear, align, {deep, high, wide});
}

const Movement kTaps = {"Shard of any dim, Replicate",
                        "what outputs read of other pieces, exact bytes; a Partial is reduced",
                        "the same, back"};

const bool kRegistered =
    OperatorFamily("interpolation")
        .above_autograd("aten::upsample_nearest1d", &nearest1d<Mode::kNearest>, kTaps)
        .above_autograd("aten::upsample_nearest2d", &nearest2d<Mode::kNearest>, kTaps)
        .above_autograd("aten::upsample_nearest3d", &nearest3d<Mode::kNearest>, kTaps)
        .above_autograd("aten::_upsample_nearest_exact1d", &nearest1d<Mode::kNearestExact>, kTaps)
        .above_autograd("aten::_upsample_nearest_exact2d", &nearest2d<Mode::kNearestExact>, kTaps)
        .above_autograd("aten::_upsample_nearest_exact3d", &nearest3d<Mode::kNearestExact>, kTaps)
        .above_autograd("aten::upsample_linear1d", &linear1d, kTaps)
        .above_autograd("aten::upsample_bilinear2d", &smooth2d<Mode::kLinear>, kTaps)
        .above_autograd("aten::upsample_trilinear3d", &linear3d, kTaps)
        .above_autograd("aten::upsample_bicubic2d", &smooth2d<Mode::kCubic>, kTaps)
        .registered();

}  // namespace
}  // namespace meshrun
