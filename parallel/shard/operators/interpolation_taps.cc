#include "parallel/shard/operators/interpolation_taps.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ATen/native/UpSample.h"
#include "ATen/ops/index_select.h"
#include "c10/util/MathConstants.h"
#include "parallel/base/traced_calls.h"

namespace meshrun {
namespace {

// The filters of LibTorch's antialiased kernels, in the same types, so that they round alike.
template <typename Number>
Number sinc(Number x) {
  if (x == 0) return 1;
  x *= c10::pi<Number>;
  return std::sin(x) / x;
}

template <typename Number>
Number filtered(InterpolationMode mode, Number x) {
  x = std::abs(x);
  if (mode == InterpolationMode::kAntialiasedLinear) {
    return x < 1.0 ? static_cast<Number>(1.0 - x) : Number{0};
  }
  if (mode == InterpolationMode::kAntialiasedCubic) {
    constexpr Number kKeys = -0.5;
    return x < 1.0   ? at::native::cubic_convolution1(x, kKeys)
           : x < 2.0 ? at::native::cubic_convolution2(x, kKeys)
                     : Number{0};
  }
  return x < 3.0 ? static_cast<Number>(sinc(x) * sinc(x / 3.0)) : Number{0};
}

// Inputs on both sides of an output that its filter reaches, where nothing shrinks.
double reach_of(InterpolationMode mode) {
  return mode == InterpolationMode::kAntialiasedLinear  ? 1
         : mode == InterpolationMode::kAntialiasedCubic ? 2
                                                        : 3;
}

}  // namespace

template <typename Number>
InterpolationTaps InterpolatedDim::linear_taps(int64_t output) const {
  InterpolationTaps taps{{0, 0}, {}};
  Number first = 0, second = 0;
  const auto ratio =
      at::native::area_pixel_compute_scale<Number>(inputs_, outputs_, how_.align_corners, scale_);
  at::native::compute_source_index_and_lambda<Number, Number>(taps.positions[0], taps.positions[1],
                                                              first, second, ratio, output, inputs_,
                                                              outputs_, how_.align_corners);
  taps.weights = {static_cast<double>(first), static_cast<double>(second)};
  return taps;
}

template <typename Number>
InterpolationTaps InterpolatedDim::cubic_taps(int64_t output) const {
  const auto ratio =
      at::native::area_pixel_compute_scale<Number>(inputs_, outputs_, how_.align_corners, scale_);
  const auto place = at::native::area_pixel_compute_source_index<Number>(
      ratio, output, how_.align_corners, /*cubic=*/true);
  int64_t base = 0;
  Number fraction = 0;
  at::native::guard_index_and_lambda(place, inputs_, base, fraction);
  Number weights[4];
  at::native::get_cubic_upsample_coefficients<Number>(weights, fraction);
  InterpolationTaps taps;
  for (int64_t j = 0; j < 4; ++j) {
    taps.positions.push_back(std::clamp<int64_t>(base - 1 + j, 0, inputs_ - 1));
    taps.weights.push_back(weights[j]);
  }
  return taps;
}

template <typename Number>
InterpolationTaps InterpolatedDim::antialiased_taps(int64_t output) const {
  if (how_.on_cpu && inputs_ == outputs_) return {{output}, {1}};
  const auto ratio =
      at::native::area_pixel_compute_scale<Number>(inputs_, outputs_, how_.align_corners, scale_);
  const double reach = reach_of(how_.mode);
  const auto support = static_cast<Number>(ratio >= 1.0 ? reach * ratio : reach);
  const auto inverse = static_cast<Number>(ratio >= 1.0 ? 1.0 / ratio : 1.0);
  const auto centre = static_cast<Number>(ratio * (static_cast<double>(output) + 0.5));
  const int64_t begin = std::max<int64_t>(static_cast<int64_t>(centre - support + 0.5), 0);
  const int64_t end = std::min<int64_t>(static_cast<int64_t>(centre + support + 0.5), inputs_);
  const int64_t most = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  const int64_t count = std::min(end - begin, most);
  // A scale that does not fit the extents.
  if (count <= 0) return {{std::min(begin, inputs_ - 1)}, {0}};
  InterpolationTaps taps;
  c10::SmallVector<Number, 8> weights;
  Number total = 0;
  for (int64_t position = begin; position < begin + count; ++position) {
    const Number distance = static_cast<Number>(position) - centre;
    weights.push_back(filtered(how_.mode, static_cast<Number>((distance + 0.5) * inverse)));
    total += weights.back();
    taps.positions.push_back(position);
  }
  for (const Number weight : weights) {
    taps.weights.push_back(total == 0 ? weight : static_cast<Number>(weight / total));
  }
  return taps;
}

template <typename Number>
InterpolationTaps InterpolatedDim::smooth_taps(int64_t output) const {
  switch (how_.mode) {
    case InterpolationMode::kLinear:
      return linear_taps<Number>(output);
    case InterpolationMode::kCubic:
      return cubic_taps<Number>(output);
    default:
      return antialiased_taps<Number>(output);
  }
}

InterpolationTaps InterpolatedDim::taps(int64_t output) const {
  switch (how_.mode) {
    case InterpolationMode::kNearest:
      return {{at::native::nearest_idx(output, inputs_, outputs_, scale_)}, {1}};
    case InterpolationMode::kNearestExact:
      return {{at::native::nearest_exact_idx(output, inputs_, outputs_, scale_)}, {1}};
    default:
      return how_.in_double ? smooth_taps<double>(output) : smooth_taps<float>(output);
  }
}

WindowedDim InterpolatedDim::windows() const {
  return {outputs_, [dim = *this](int64_t output) {
            const InterpolationTaps taps = dim.taps(output);
            return SplitRange{taps.positions.front(), taps.positions.back() + 1};
          }};
}

bool InterpolatedDim::has_doubtful_scale() const {
  if (!scale_ || *scale_ <= 0 || how_.align_corners) return false;
  const bool is_doubtful = (outputs_ == inputs_ && how_.mode != InterpolationMode::kNearestExact) ||
                           (outputs_ == 2 * inputs_ && how_.mode == InterpolationMode::kNearest);
  return is_doubtful && *scale_ * static_cast<double>(inputs_) != static_cast<double>(outputs_);
}

at::Tensor InterpolatedDim::apply(const at::Tensor& inputs, int64_t dim, int64_t first,
                                  SplitRange outputs) const {
  std::vector<InterpolationTaps> all;
  std::vector<int64_t> counts;
  for (int64_t output = outputs.begin; output < outputs.end; ++output) {
    all.push_back(taps(output));
    counts.push_back(static_cast<int64_t>(all.back().positions.size()));
  }
  const auto [fewest, most] = std::minmax_element(counts.begin(), counts.end());
  std::vector<int64_t> along(static_cast<size_t>(inputs.dim()), 1);
  along[static_cast<size_t>(dim)] = outputs.size();
  at::Tensor sum;
  for (int64_t j = 0; j < *most; ++j) {
    std::vector<int64_t> positions;
    std::vector<double> weights;
    for (size_t i = 0; i < all.size(); ++i) {
      const auto tap = static_cast<size_t>(j < counts[i] ? j : 0);
      positions.push_back(all[i].positions[tap] - first);
      weights.push_back(all[i].weights[tap]);
    }
    const at::Tensor picked = inputs.index_select(dim, constant(positions).to(inputs.device()));
    if (how_.picks()) return picked;
    at::Tensor product = picked * constant(weights).to(inputs.options()).view(along);
    // Not a weight of zero, which would make a NaN of an infinity.
    if (j >= *fewest) {
      const at::Tensor ended = constant(counts).le(j).to(inputs.device());
      product = product.masked_fill(ended.view(along), 0);
    }
    sum = sum.defined() ? sum + product : product;
  }
  return sum;
}

}  // namespace meshrun
