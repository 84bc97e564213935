#include "jobs/swe/initial_state.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "jobs/runtime/random.h"

namespace meshrun::swe {
namespace {

using at::Tensor;

constexpr int64_t kLargestWave = 4;
constexpr int64_t kWaves = 2 * kLargestWave + 1;
// Root mean squares, in expectation, where the waves' speed is 1.
constexpr double kVelocity = 0.3;
constexpr double kUnbalancedDepth = 0.03;
constexpr uint64_t kStream = 0x7377'6500'0000'0001;

// exp(i k x) at points [begin, end) of `points`: [own points, waves].
Tensor exponentials(int64_t begin, int64_t end, int64_t points) {
  const Tensor positions =
      at::arange(begin, end, at::kDouble) * (2 * std::numbers::pi / static_cast<double>(points));
  const Tensor phases =
      at::outer(positions, at::arange(-kLargestWave, kLargestWave + 1, at::kDouble));
  return at::complex(at::cos(phases), at::sin(phases));
}

}  // namespace

Tensor random_states(uint64_t seed, int64_t first, int64_t count,
                     const ShallowWaterParameters& parameters, const SplitRange& columns) {
  const Tensor k = at::arange(-kLargestWave, kLargestWave + 1, at::kDouble);
  const Tensor squares = k.square().unsqueeze(1) + k.square().unsqueeze(0);
  const Tensor kept =
      at::logical_and(squares > 0, squares <= kLargestWave * kLargestWave).to(at::kDouble);
  // Velocities have the same variance in all waves that are kept.
  const double waves = kept.sum().item<double>();
  const Tensor stream_deviations =
      kept * (kVelocity / std::sqrt(waves)) / squares.clamp_min(1).sqrt();
  const Tensor depth_deviations = kept * (kUnbalancedDepth / std::sqrt(waves));

  const Tensor along_rows = exponentials(0, parameters.rows, parameters.rows);
  const Tensor along_columns = exponentials(columns.begin, columns.end, parameters.columns).t();
  const auto on_grid = [&](const Tensor& coefficients) {
    return at::real(at::matmul(at::matmul(along_rows, coefficients), along_columns));
  };
  const Tensor i_k = at::complex(at::zeros_like(k), k);
  std::vector<Tensor> states;
  for (int64_t number = first; number < first + count; ++number) {
    const uint64_t own =
        jobs::mix(jobs::mix(kStream ^ jobs::mix(seed)) ^ static_cast<uint64_t>(number));
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(own);
    const Tensor normal = at::randn({2, 2, kWaves, kWaves}, generator, at::kDouble);
    const Tensor stream = at::complex(normal[0][0], normal[0][1]) * stream_deviations;
    const Tensor depth = at::complex(normal[1][0], normal[1][1]) * depth_deviations;
    // Rows of the coefficients are waves along y.
    states.push_back(
        at::stack({on_grid(-i_k.unsqueeze(1) * stream), on_grid(i_k.unsqueeze(0) * stream),
                   1 + on_grid(parameters.coriolis / parameters.gravity * stream + depth)}));
  }
  if (states.empty()) {
    return at::empty({0, 3, parameters.rows, columns.size()}, at::kDouble);
  }
  return at::stack(states).contiguous();
}

}  // namespace meshrun::swe
