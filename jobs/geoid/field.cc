#include "jobs/geoid/field.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace meshrun::geoid {

Field::Field(GtxGrid grid) : grid_(std::move(grid)) {
  constexpr double kRadians = std::numbers::pi / 180;
  for (int64_t row = 0; row < grid_.rows; ++row) {
    const double latitude = grid_.latitude(row) * kRadians;
    row_weights_.push_back(std::max(0.0, std::cos(latitude)));
    row_sines_.push_back(std::sin(latitude));
  }
  for (int64_t column = 0; column < grid_.columns; ++column) {
    const double longitude = grid_.longitude(column) * kRadians;
    column_cosines_.push_back(std::cos(longitude));
    column_sines_.push_back(std::sin(longitude));
  }
  double weights = 0;
  double sum = 0;
  double squares = 0;
  for (int64_t point = 0; point < grid_.size(); ++point) {
    const double metres = grid_.metres[point];
    weights += weight(point);
    sum += weight(point) * metres;
    squares += weight(point) * metres * metres;
  }
  mean_m_ = sum / weights;
  const double variance = squares / weights - mean_m_ * mean_m_;
  // A constant field has nothing to scale by.
  if (variance > 0) standard_deviation_m_ = std::sqrt(variance);
}

Field::Samples Field::samples(std::span<const int64_t> points) const {
  const auto count = static_cast<int64_t>(points.size());
  Samples samples{at::empty({count, 3}, at::kFloat), at::empty({count}, at::kFloat),
                  at::empty({count}, at::kFloat)};
  auto* position = samples.positions.mutable_data_ptr<float>();
  auto* target = samples.targets.mutable_data_ptr<float>();
  auto* weight = samples.weights.mutable_data_ptr<float>();
  for (const int64_t point : points) {
    const int64_t row = point / grid_.columns;
    const int64_t column = point % grid_.columns;
    *position++ = static_cast<float>(row_weights_[row] * column_cosines_[column]);
    *position++ = static_cast<float>(row_weights_[row] * column_sines_[column]);
    *position++ = static_cast<float>(row_sines_[row]);
    *target++ = static_cast<float>((grid_.metres[point] - mean_m_) / standard_deviation_m_);
    *weight++ = static_cast<float>(row_weights_[row]);
  }
  return samples;
}

}  // namespace meshrun::geoid
