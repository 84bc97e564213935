#include "jobs/swe/solver.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "parallel/base/split.h"

namespace meshrun::swe {
namespace {

using at::Tensor;

FftOptions transform_options(const ShallowWaterParameters& parameters, const GroupArgument& group,
                             bool is_forward) {
  const int64_t ranks = group.get()->getSize();
  const std::vector<int64_t> columns = compute_split_shapes(parameters.columns, ranks);
  const std::vector<int64_t> rows = compute_split_shapes(parameters.rows / 2 + 1, ranks);
  FftOptions options;
  options.s = {parameters.rows, parameters.columns};
  options.norm = "forward";
  options.group = group;
  options.layout = FftLayout::kPaired;
  options.input_sizes = is_forward ? columns : rows;
  options.output_sizes = is_forward ? rows : columns;
  return options;
}

// The largest wave number kept of `points`: products of two have no alias among those kept.
int64_t largest_kept(int64_t points) { return (points - 1) / 3; }

}  // namespace

ShallowWater::ShallowWater(const ShallowWaterParameters& parameters, const GroupArgument& group,
                           c10::Device device)
    : parameters_(parameters),
      forward_(transform_options(parameters, group, true)),
      inverse_(transform_options(parameters, group, false)) {
  const auto [rows, columns, coriolis, gravity, damping] = parameters;
  TORCH_CHECK_VALUE(rows >= 4 && columns >= 4,
                    "A shallow-water grid has 4 x 4 points at least, not ", rows, " x ", columns);
  TORCH_CHECK_VALUE(gravity > 0 && damping >= 0,
                    "Gravity is positive and damping not negative, not ", gravity, " and ",
                    damping);
  const auto handle = group.get();
  const SplitRange own = split_range(rows / 2 + 1, handle->getSize(), handle->getRank());
  own_rows_ = own.size();
  own_columns_ = split_range(columns, handle->getSize(), handle->getRank()).size();
  const Tensor k_y = at::arange(own.begin, own.end, at::kDouble).unsqueeze(1);
  const Tensor k_x =
      at::fft_fftfreq(columns, 1.0 / static_cast<double>(columns), at::kDouble).unsqueeze(0);
  const Tensor none = at::zeros({own_rows_, columns}, at::kDouble);
  d_dx_ = at::complex(none, k_x + none).to(device);
  d_dy_ = at::complex(none, k_y + none).to(device);
  const int64_t kept_x = largest_kept(columns);
  kept_ =
      at::logical_and(k_x.abs() <= kept_x, k_y <= largest_kept(rows)).to(at::kDouble).to(device);
  const double scale = static_cast<double>(kept_x * kept_x);
  damping_ = (damping * ((k_x.square() + k_y.square()) / scale).square()).to(device);
}

Tensor ShallowWater::check(const Tensor& state, at::ScalarType dtype, int64_t rows,
                           int64_t columns) const {
  TORCH_CHECK_VALUE(state.dim() == 4 && state.size(1) == 3 && state.size(2) == rows &&
                        state.size(3) == columns && state.scalar_type() == dtype,
                    "A shallow-water state is [batch, 3, ", rows, ", ", columns, "] ",
                    c10::toString(dtype), " on this rank, not ", state.sizes(), " ",
                    c10::toString(state.scalar_type()));
  return state;
}

Tensor ShallowWater::to_spectrum(const Tensor& field) {
  return forward_(check(field, at::kDouble, parameters_.rows, own_columns_)) * kept_;
}

Tensor ShallowWater::to_field(const Tensor& spectrum) {
  return inverse_(check(spectrum, at::kComplexDouble, own_rows_, parameters_.columns));
}

Tensor ShallowWater::tendency(const Tensor& spectrum) {
  const Tensor u_hat = spectrum.select(1, 0);
  const Tensor v_hat = spectrum.select(1, 1);
  const Tensor zeta_hat = d_dx_ * v_hat - d_dy_ * u_hat;
  const Tensor field = inverse_(at::cat({spectrum, zeta_hat.unsqueeze(1)}, 1));
  const Tensor u = field.select(1, 0);
  const Tensor v = field.select(1, 1);
  const Tensor h = field.select(1, 2);
  const Tensor absolute = field.select(1, 3) + parameters_.coriolis;
  const Tensor bernoulli = parameters_.gravity * h + (u.square() + v.square()) / 2;
  const Tensor products =
      forward_(at::stack({absolute * v, absolute * u, bernoulli, h * u, h * v}, 1));
  const auto product = [&](int64_t which) { return products.select(1, which); };
  const Tensor rates = at::stack({product(0) - d_dx_ * product(2), -product(1) - d_dy_ * product(2),
                                  -(d_dx_ * product(3) + d_dy_ * product(4))},
                                 1);
  return rates * kept_ - damping_ * spectrum;
}

Tensor ShallowWater::advance(Tensor spectrum, double dt, int64_t steps) {
  check(spectrum, at::kComplexDouble, own_rows_, parameters_.columns);
  for (int64_t step = 0; step < steps; ++step) {
    const Tensor first = tendency(spectrum);
    const Tensor second = tendency(spectrum + dt / 2 * first);
    const Tensor third = tendency(spectrum + dt / 2 * second);
    const Tensor fourth = tendency(spectrum + dt * third);
    spectrum = spectrum + dt / 6 * (first + 2 * (second + third) + fourth);
  }
  return spectrum;
}

}  // namespace meshrun::swe
