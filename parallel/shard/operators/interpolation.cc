// Interpolation. Every mode is a product of one-dimensional ones: whole dimensions go through
// LibTorch's kernel, cut ones through the taps of each output (interpolation_taps.h).
#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/ops/_upsample_bicubic2d_aa.h"
#include "ATen/ops/_upsample_bilinear2d_aa.h"
#include "ATen/ops/_upsample_nearest_exact1d.h"
#include "ATen/ops/_upsample_nearest_exact2d.h"
#include "ATen/ops/_upsample_nearest_exact3d.h"
#include "ATen/ops/upsample_bicubic2d.h"
#include "ATen/ops/upsample_bilinear2d.h"
#include "ATen/ops/upsample_linear1d.h"
#include "ATen/ops/upsample_nearest1d.h"
#include "ATen/ops/upsample_nearest2d.h"
#include "ATen/ops/upsample_nearest3d.h"
#include "ATen/ops/upsample_trilinear3d.h"
#include "ATen/ops/zeros.h"
#include "c10/util/SmallVector.h"
#include "fmt/format.h"
#include "parallel/collectives/call/pieces.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/interpolation_taps.h"
#include "parallel/shard/operators/windows.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {
namespace {

using Mode = InterpolationMode;
using Scale = std::optional<double>;

// The rule of window plans whose key has the mode, the extents and the scales.
const char kInterpolationRule = 0;

at::Tensor lanczos_kernel(const at::Tensor& local, at::IntArrayRef size, bool align, Scale high,
                          Scale wide) {
  // Not all versions of LibTorch have a header for it.
  static const auto op =
      operator_named("aten::_upsample_lanczos2d_aa")
          .typed<at::Tensor(const at::Tensor&, c10::SymIntArrayRef, bool, Scale, Scale)>();
  return op.call(local, c10::fromIntArrayRefSlow(size), align, high, wide);
}

// LibTorch's kernel on whole dimensions.
at::Tensor interpolate_locally(const at::Tensor& local, at::IntArrayRef size,
                               const Interpolation& how, const std::vector<Scale>& scales) {
  const bool align = how.align_corners;
  switch (how.mode) {
    case Mode::kCubic:
      return at::upsample_bicubic2d(local, size, align, scales[0], scales[1]);
    case Mode::kAntialiasedLinear:
      return at::_upsample_bilinear2d_aa(local, size, align, scales[0], scales[1]);
    case Mode::kAntialiasedCubic:
      return at::_upsample_bicubic2d_aa(local, size, align, scales[0], scales[1]);
    case Mode::kAntialiasedLanczos:
      return lanczos_kernel(local, size, align, scales[0], scales[1]);
    default:
      break;
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

// The kernel on the dimensions that the plan leaves whole. The others are channels meanwhile: where
// the kernel sees them at all it also reads neighbours, whose weights are zero but which may be
// infinite.
at::Tensor interpolate_whole_dims(const at::Tensor& gathered, at::IntArrayRef size,
                                  const Interpolation& how, const std::vector<Scale>& scales,
                                  const WindowPlan& plan) {
  std::vector<int64_t> order = {0, 1};
  std::vector<int64_t> whole;
  for (int64_t dim = 2; dim < gathered.dim(); ++dim) {
    (plan.cut(dim) == nullptr ? whole : order).push_back(dim);
  }
  const auto first_whole = static_cast<int64_t>(order.size());
  order.insert(order.end(), whole.begin(), whole.end());
  const at::Tensor moved = gathered.permute(order);
  std::vector<int64_t> result = moved.sizes().vec();
  std::vector<int64_t> shape = {moved.size(0), c10::multiply_integers(moved.sizes().slice(
                                                   1, static_cast<size_t>(first_whole) - 1))};
  std::vector<int64_t> extents;
  std::vector<Scale> own_scales;
  // Antialiased modes have kernels for images alone.
  if (how.antialiases()) {
    shape.push_back(1);
    extents.push_back(1);
    own_scales.emplace_back();
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    const auto of = static_cast<size_t>(whole[i] - 2);
    shape.push_back(gathered.size(whole[i]));
    extents.push_back(size[of]);
    own_scales.push_back(scales[of]);
    result[static_cast<size_t>(first_whole) + i] = size[of];
  }
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return interpolate_locally(moved.reshape(shape), extents, how, own_scales)
      .reshape(result)
      .permute(back);
}

void check(const at::Tensor& self, at::IntArrayRef size, size_t dims) {
  bool is_valid = self.dim() == static_cast<int64_t>(dims) + 2 && size.size() == dims;
  is_valid = is_valid && self.size(1) > 0;
  for (size_t i = 0; i < dims && is_valid; ++i) {
    is_valid = size[i] > 0 && self.size(static_cast<int64_t>(i) + 2) > 0;
  }
  if (!is_valid) {
    throw ShardTensorError(
        fmt::format("interpolation: a tensor of {} to {}", to_words(self.sizes()), to_words(size)));
  }
}

// Raises what LibTorch raises for such a dtype, also on a rank without outputs.
void check_kernel(const at::Tensor& self, at::IntArrayRef size, const Interpolation& how,
                  const std::vector<Scale>& scales) {
  if (self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble) return;
  std::vector<int64_t> extents;
  for (size_t i = 0; i < size.size(); ++i) {
    extents.push_back(size[i] == self.size(static_cast<int64_t>(i) + 2) ? 1 : 2);
  }
  const at::TensorOptions options =
      at::TensorOptions().dtype(self.scalar_type()).device(self.device());
  interpolate_locally(at::zeros(std::vector<int64_t>(size.size() + 2, 1), options), extents, how,
                      std::vector<Scale>(scales.size()));
}

at::Tensor interpolate(const at::Tensor& self, at::IntArrayRef size, Mode mode, bool align_corners,
                       std::vector<Scale> scales) {
  const size_t dims = scales.size();
  check(self, size, dims);
  const Interpolation how{mode, align_corners, self.scalar_type() == at::kDouble, self.is_cpu()};
  check_kernel(self, size, how, scales);
  std::vector<InterpolatedDim> along;
  // Weighted sums of integers are rounded in ways of their own, which depend on the channels too.
  const bool has_whole_channels = !at::isFloatingType(self.scalar_type()) && !how.picks();
  bool is_whole = has_whole_channels;
  c10::SmallVector<int64_t, 24> key = {rule_number(&kInterpolationRule), static_cast<int64_t>(mode),
                                       int64_t{how.align_corners}, int64_t{how.in_double},
                                       int64_t{how.on_cpu}};
  for (size_t i = 0; i < dims; ++i) {
    along.emplace_back(how, self.size(static_cast<int64_t>(i) + 2), size[i], scales[i]);
    is_whole |= along.back().has_doubtful_scale();
    key.append(
        {size[i], int64_t{scales[i].has_value()}, std::bit_cast<int64_t>(scales[i].value_or(0.0))});
  }
  // Where the result has one column, LibTorch's antialiased kernels for the CPU give every row the
  // values of the first one. Cut or not, the result is LibTorch's.
  is_whole |= how.antialiases() && how.on_cpu && size.back() == 1 && size[0] != self.size(2);
  std::vector<int64_t> whole(is_whole ? dims : 0);
  std::iota(whole.begin(), whole.end(), 2);
  if (has_whole_channels) whole.push_back(1);
  const SpecPtr spec = windowed_spec(spec_of(self), whole);
  const WindowPlan plan(spec, {.first = 2}, key, [&] {
    std::vector<WindowedDim> windows;
    for (const InterpolatedDim& dim : along) windows.push_back(dim.windows());
    return windows;
  });
  at::Tensor result = plan.gather(to_local(redistribute(self, spec)));
  if (!plan.computes()) return from_local(plan.nothing(result, false), plan.result());
  if (plan.cuts().empty()) {
    return from_local(interpolate_locally(result, size, how, scales), plan.result());
  }
  const bool in_float = at::isReducedFloatingType(self.scalar_type());
  if (in_float) result = result.to(at::kFloat);
  if (plan.cuts().size() < dims && mode != Mode::kCubic) {
    result = interpolate_whole_dims(result, size, how, scales, plan);
  }
  for (size_t i = 0; i < dims; ++i) {
    const int64_t dim = static_cast<int64_t>(i) + 2;
    if (const WindowPlan::Cut* cut = plan.cut(dim)) {
      result = along[i].apply(result, dim, cut->range.begin, cut->owned);
    } else if (mode == Mode::kCubic) {
      // LibTorch has no cubic kernel of one dimension.
      result = along[i].apply(result, dim, 0, {0, size[i]});
    }
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
                        "what outputs read of other pieces, exact bytes; a Partial is reduced. "
                        "Gathered: integers except "
                        "by the nearest modes, a scale factor that only some of LibTorch's kernels "
                        "take, one column that "
                        "is antialiased",
                        "the same, back"};

const bool kRegistered = [] {
  auto family = OperatorFamily("interpolation");
  const auto add = [&]<auto Function>(const char* op) {
    if (!find_operator(op)) return;  // LibTorch 2.11 has no Lanczos filter
    family.above_autograd(op, Function, kTaps)
        .below_autograd(std::string(op) + ".out", &Into<Function>::call, kTaps);
  };
  add.template operator()<&nearest1d<Mode::kNearest>>("aten::upsample_nearest1d");
  add.template operator()<&nearest2d<Mode::kNearest>>("aten::upsample_nearest2d");
  add.template operator()<&nearest3d<Mode::kNearest>>("aten::upsample_nearest3d");
  add.template operator()<&nearest1d<Mode::kNearestExact>>("aten::_upsample_nearest_exact1d");
  add.template operator()<&nearest2d<Mode::kNearestExact>>("aten::_upsample_nearest_exact2d");
  add.template operator()<&nearest3d<Mode::kNearestExact>>("aten::_upsample_nearest_exact3d");
  add.template operator()<&linear1d>("aten::upsample_linear1d");
  add.template operator()<&smooth2d<Mode::kLinear>>("aten::upsample_bilinear2d");
  add.template operator()<&linear3d>("aten::upsample_trilinear3d");
  add.template operator()<&smooth2d<Mode::kCubic>>("aten::upsample_bicubic2d");
  add.template operator()<&smooth2d<Mode::kAntialiasedLinear>>("aten::_upsample_bilinear2d_aa");
  add.template operator()<&smooth2d<Mode::kAntialiasedCubic>>("aten::_upsample_bicubic2d_aa");
  add.template operator()<&smooth2d<Mode::kAntialiasedLanczos>>("aten::_upsample_lanczos2d_aa");
  return family.registered();
}();

}  // namespace
}  // namespace meshrun
