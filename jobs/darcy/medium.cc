#include "jobs/darcy/medium.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <numbers>
#include <vector>

#include "jobs/runtime/random.h"

namespace meshrun::darcy {
namespace {

using at::Tensor;

constexpr double kInverseLength = 3;  // tau
constexpr double kHigh = 12;
constexpr double kLow = 3;
constexpr uint64_t kStream = 0x6461'7263'7900'0001;

// [cells, waves]: orthonormal cosines at the cells' centres.
Tensor cosines(int64_t cells) {
  const Tensor centres =
      (at::arange(cells, at::kDouble) + 0.5) * (std::numbers::pi / static_cast<double>(cells));
  Tensor table = std::numbers::sqrt2 * at::cos(at::outer(centres, at::arange(cells, at::kDouble)));
  table.select(1, 0).fill_(1);
  return table;
}

// [rows, columns]: the standard deviation of each wave's coefficient. The mean is left out.
Tensor spectrum(int64_t rows, int64_t columns) {
  const auto squares = [](int64_t cells) {
    return (std::numbers::pi * at::arange(cells, at::kDouble)).square();
  };
  const Tensor eigenvalues =
      squares(rows).unsqueeze(1) + squares(columns).unsqueeze(0) + kInverseLength * kInverseLength;
  Tensor deviations = kInverseLength / eigenvalues;
  deviations[0][0] = 0;
  return deviations;
}

}  // namespace

Tensor gaussian_fields(uint64_t seed, int64_t first, int64_t count, int64_t rows, int64_t columns) {
  std::vector<Tensor> coefficients;
  for (int64_t number = first; number < first + count; ++number) {
    const uint64_t own =
        jobs::mix(jobs::mix(kStream ^ jobs::mix(seed)) ^ static_cast<uint64_t>(number));
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(own);
    coefficients.push_back(at::randn({rows, columns}, generator, at::kDouble));
  }
  if (coefficients.empty()) return at::empty({0, rows, columns}, at::kDouble);
  const Tensor waves = at::stack(coefficients) * spectrum(rows, columns);
  return at::matmul(at::matmul(cosines(rows), waves), cosines(columns).t());
}

Tensor permeability_of(const Tensor& fields, const std::string& medium) {
  if (medium == "threshold") {
    return at::where(fields > 0, at::full({}, kHigh, at::kDouble), at::full({}, kLow, at::kDouble));
  }
  TORCH_CHECK_VALUE(medium == "lognormal", "A medium is \"threshold\" or \"lognormal\", not \"",
                    medium, "\"");
  const Tensor deviation = spectrum(fields.size(1), fields.size(2)).square().sum().sqrt();
  return at::exp(fields / deviation);
}

}  // namespace meshrun::darcy
