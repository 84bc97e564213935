#include "parallel/shard/operators/sample_taps.h"

#include "ATen/core/grad_mode.h"
#include "ATen/native/GridSamplerUtils.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/shard/operators/lookup.h"

namespace meshrun {
namespace {

using Interpolation = at::native::GridSamplerInterpolation;
using Padding = at::native::GridSamplerPadding;

// LibTorch's kernels differ in what they make of infinity and NaN. The one of two dimensions on the
// CPU multiplies what lies beyond the image by its weight, and clips NaN to the first element.
struct KernelHabits {
  bool weighs_beyond;
  bool clips_nan_to_last;
};

KernelHabits habits_of(const at::Tensor& grid, size_t dims) {
  return {grid.is_cpu() && dims == 2, grid.is_cpu() && dims == 3};
}

at::Tensor from_unit_interval(const at::Tensor& x, int64_t extent, bool align_corners) {
  return align_corners ? (x + 1) / 2 * (extent - 1) : ((x + 1) * extent - 1) / 2;
}

// Constant at the ends too, as LibTorch's gradient has it.
at::Tensor clipped(const at::Tensor& x, int64_t extent, bool nan_to_last) {
  const c10::Scalar last = extent - 1;
  return nan_to_last ? at::where(x <= 0, 0, at::where(x < last, x, last))
                     : at::where(x >= last, last, at::where(x > 0, x, 0));
}

at::Tensor reflected(const at::Tensor& x, int64_t extent, bool align_corners) {
  const double low = align_corners ? 0 : -0.5;
  const auto span = static_cast<double>(align_corners ? extent - 1 : extent);
  if (span == 0) return connected_zeros(x, x.sizes());
  const at::Tensor from_low = (x - low).abs();
  const at::Tensor extra = from_low.fmod(span);
  const at::Tensor is_odd = (from_low.detach() / span).floor().remainder(2).ne(0);
  return at::where(is_odd, span - extra, extra) + low;
}

at::Tensor padded(const at::Tensor& x, int64_t extent, Padding padding, bool align_corners,
                  const KernelHabits& habits) {
  if (padding == Padding::Zeros) return x;
  return clipped(padding == Padding::Reflection ? reflected(x, extent, align_corners) : x, extent,
                 habits.clips_nan_to_last);
}

at::Tensor is_within(const at::Tensor& position, SplitRange range) {
  return position.ge(range.begin).bitwise_and(position.lt(range.end));
}

// Cubic convolution with -0.75 for distances below 1, and from 1 to 2.
at::Tensor near_weight(const at::Tensor& x) { return (1.25 * x - 2.25) * x * x + 1; }
at::Tensor far_weight(const at::Tensor& x) { return ((-0.75 * x + 3.75) * x - 6) * x + 3; }

SampleTaps taps_along(const at::Tensor& x, int64_t extent, const SamplingModes& modes,
                      const KernelHabits& habits) {
  const auto padding = static_cast<Padding>(modes.padding);
  const at::Tensor place = from_unit_interval(x, extent, modes.align_corners);
  const auto pad = [&](const at::Tensor& at) {
    return padded(at, extent, padding, modes.align_corners, habits);
  };
  switch (static_cast<Interpolation>(modes.interpolation)) {
    case Interpolation::Nearest:
      return {{pad(place).detach().round(), {}}};
    case Interpolation::Bilinear: {
      const at::Tensor inside = pad(place);
      const at::Tensor first = inside.detach().floor();
      const at::Tensor fraction = inside - first;
      SampleTaps taps = {{first, 1 - fraction}, {first + 1, fraction}};
      if (habits.weighs_beyond) return taps;
      for (SampleTap& tap : taps) {
        tap.weight = at::where(is_within(tap.position, {0, extent}), tap.weight, 0);
      }
      return taps;
    }
    case Interpolation::Bicubic:
      break;
  }
  const at::Tensor base = place.detach().floor();
  const at::Tensor fraction = place - base;
  const at::Tensor rest = 1 - fraction;
  const at::Tensor weights[] = {far_weight(fraction + 1), near_weight(fraction), near_weight(rest),
                                far_weight(rest + 1)};
  SampleTaps taps;
  for (int64_t i = 0; i < 4; ++i) taps.push_back({pad(base + (i - 1)), weights[i]});
  return taps;
}

}  // namespace

std::vector<SampleTaps> sample_taps(const at::Tensor& grid, at::IntArrayRef extents,
                                    const SamplingModes& modes) {
  const size_t dims = extents.size();
  const at::Tensor points =
      (at::isReducedFloatingType(grid.scalar_type()) ? grid.to(at::kFloat) : grid)
          .flatten(1, grid.dim() - 2);
  std::vector<SampleTaps> taps;
  for (size_t d = 0; d < dims; ++d) {
    // The grid names the last dimension first.
    taps.push_back(taps_along(points.select(-1, static_cast<int64_t>(dims - 1 - d)), extents[d],
                              modes, habits_of(grid, dims)));
  }
  return taps;
}

at::Tensor read_bounds(const SampleTaps& taps, int64_t extent) {
  const c10::NoGradGuard no_grad;
  at::Tensor bounds = at::zeros({2}, taps[0].position.options().dtype(at::kLong));
  bounds.select(0, 0).fill_(1 - extent);
  if (taps[0].position.numel() == 0) return bounds;
  for (const SampleTap& tap : taps) {
    const at::Tensor within = is_within(tap.position, {0, extent});
    const at::Tensor first = at::where(within, 1 - tap.position, 1 - extent).amax();
    const at::Tensor end = at::where(within, tap.position + 1, 0).amax();
    bounds = bounds.maximum(at::stack({first, end}).to(at::kLong));
  }
  return bounds;
}

at::Tensor sum_of_taps(const at::Tensor& image, const std::vector<SplitRange>& ranges,
                       const std::vector<SampleTaps>& taps) {
  // One more element, zero, stands for all that lie elsewhere.
  const at::Tensor flat = with_spare_row(image.flatten(2), 2);
  const int64_t elsewhere = flat.size(2) - 1;
  std::vector<std::vector<at::Tensor>> within(taps.size()), local(taps.size());
  for (size_t d = 0; d < taps.size(); ++d) {
    for (const SampleTap& tap : taps[d]) {
      within[d].push_back(is_within(tap.position, ranges[d]));
      local[d].push_back(
          at::where(within[d].back(), tap.position - ranges[d].begin, 0).to(at::kLong));
    }
  }
  const at::Tensor& some = taps[0][0].position;
  at::Tensor sum;
  std::vector<size_t> chosen(taps.size(), 0);  // the tap of each dimension
  while (true) {
    at::Tensor index = local[0][chosen[0]];
    at::Tensor is_here = within[0][chosen[0]];
    at::Tensor weight = taps[0][chosen[0]].weight;
    for (size_t d = 1; d < taps.size(); ++d) {
      index = index * ranges[d].size() + local[d][chosen[d]];
      is_here = is_here.bitwise_and(within[d][chosen[d]]);
      const at::Tensor& along = taps[d][chosen[d]].weight;
      if (along.defined()) weight = weight * along;
    }
    index = at::where(is_here, index, elsewhere)
                .unsqueeze(1)
                .expand({some.size(0), flat.size(1), some.size(1)});
    at::Tensor read = flat.gather(2, index);
    if (weight.defined()) read = read * weight.unsqueeze(1);
    sum = sum.defined() ? sum + read : read;
    size_t d = 0;
    while (d < taps.size() && ++chosen[d] == taps[d].size()) chosen[d++] = 0;
    if (d == taps.size()) return sum;
  }
}

}  // namespace meshrun
