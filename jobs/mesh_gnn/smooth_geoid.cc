#include "jobs/mesh_gnn/smooth_geoid.h"

#include <algorithm>
#include <cmath>

namespace meshrun::mesh_gnn {
namespace {

// Points of the filter: on a spiral, equally weighted, as many within each radius as a Gaussian
// has.
constexpr int kFilterPoints = 96;

// Between the four points around it. Longitudes wrap around, latitudes end at the first and last
// row.
template <typename Value>
double interpolate(const Vector& point, double south, double west, double latitude_step,
                   double longitude_step, int64_t rows, int64_t columns, const Value& value) {
  const double latitude = std::asin(std::clamp(point[2], -1.0, 1.0)) / kDegree;
  const double longitude = std::atan2(point[1], point[0]) / kDegree;
  const double y =
      std::clamp((latitude - south) / latitude_step, 0.0, static_cast<double>(rows - 1));
  const double turn = 360 / longitude_step;
  double x = std::fmod((longitude - west) / longitude_step, turn);
  if (x < 0) x += turn;
  const auto row = std::min(static_cast<int64_t>(y), std::max<int64_t>(rows - 2, 0));
  const auto column = std::min(static_cast<int64_t>(x), columns - 1);
  const int64_t above = std::min(row + 1, rows - 1);
  const int64_t right = (column + 1) % columns;
  const double dy = y - static_cast<double>(row);
  const double dx = std::min(x - static_cast<double>(column), 1.0);
  return (1 - dy) * ((1 - dx) * value(row, column) + dx * value(row, right)) +
         dy * ((1 - dx) * value(above, column) + dx * value(above, right));
}

struct Offset {
  double angle;  // from the centre
  double east;
  double north;
};

std::vector<Offset> gaussian_spiral(double width_radians) {
  const double golden = std::numbers::pi * (3 - std::sqrt(5.0));
  std::vector<Offset> offsets;
  for (int k = 0; k < kFilterPoints; ++k) {
    const double share = (k + 0.5) / kFilterPoints;
    offsets.push_back({width_radians * std::sqrt(-2 * std::log(1 - share)), std::cos(golden * k),
                       std::sin(golden * k)});
  }
  return offsets;
}

Vector moved(const Vector& point, const Frame& frame, const Offset& offset) {
  const double along = std::sin(offset.angle);
  const Vector centre = {point[0] * std::cos(offset.angle), point[1] * std::cos(offset.angle),
                         point[2] * std::cos(offset.angle)};
  return sum(sum(centre, along * offset.east, frame.east), along * offset.north, frame.north);
}

}  // namespace

SmoothGeoid::SmoothGeoid(const geoid::GtxGrid& field, double width_degrees)
    : step_degrees_(std::max(1.0, std::round(width_degrees / 3))),
      difference_radians_(width_degrees / 3 * kDegree) {
  while (std::fmod(180, step_degrees_) != 0) --step_degrees_;
  rows_ = static_cast<int64_t>(180 / step_degrees_) + 1;
  columns_ = static_cast<int64_t>(360 / step_degrees_);
  metres_.resize(static_cast<size_t>(rows_ * columns_));
  const auto original = [&](int64_t row, int64_t column) {
    return static_cast<double>(field.metres[static_cast<size_t>(row * field.columns + column)]);
  };
  const std::vector<Offset> offsets = gaussian_spiral(width_degrees * kDegree);
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t column = 0; column < columns_; ++column) {
      const Vector centre = point_at(-90 + step_degrees_ * static_cast<double>(row),
                                     -180 + step_degrees_ * static_cast<double>(column));
      const Frame frame = frame_at(centre);
      double total = 0;
      for (const Offset& offset : offsets) {
        total +=
            interpolate(moved(centre, frame, offset), field.south, field.west, field.latitude_step,
                        field.longitude_step, field.rows, field.columns, original);
      }
      metres_[static_cast<size_t>(row * columns_ + column)] =
          static_cast<float>(total / kFilterPoints);
    }
  }
  measure();
}

void SmoothGeoid::measure() {
  double weights = 0;
  double heights = 0;
  double squares = 0;
  double slopes = 0;
  for (int64_t row = 0; row < rows_; ++row) {
    const double latitude = -90 + step_degrees_ * static_cast<double>(row);
    const double weight = std::cos(latitude * kDegree);
    for (int64_t column = 0; column < columns_; ++column) {
      const Vector point = point_at(latitude, -180 + step_degrees_ * static_cast<double>(column));
      const double height = height_m(point);
      const Slope its = slope(point);
      weights += weight;
      heights += weight * height;
      squares += weight * height * height;
      slopes += weight * (its.east * its.east + its.north * its.north) / 2;
    }
  }
  mean_m_ = heights / weights;
  // A constant field has nothing to scale by.
  const double variance = squares / weights - mean_m_ * mean_m_;
  if (variance > 1e-12) height_scale_m_ = std::sqrt(variance);
  if (slopes > 1e-12) slope_scale_ = std::sqrt(slopes / weights);
}

double SmoothGeoid::height_m(const Vector& point) const {
  return interpolate(
      point, -90, -180, step_degrees_, step_degrees_, rows_, columns_,
      [&](int64_t row, int64_t column) {
        return static_cast<double>(metres_[static_cast<size_t>(row * columns_ + column)]);
      });
}

Slope SmoothGeoid::slope(const Vector& point) const {
  const Frame frame = frame_at(point);
  const double to_arc_seconds = 1 / (2 * difference_radians_ * kEarthRadiusM * kArcSecond);
  const auto difference = [&](double east, double north) {
    return height_m(moved(point, frame, {difference_radians_, east, north})) -
           height_m(moved(point, frame, {-difference_radians_, east, north}));
  };
  return {difference(1, 0) * to_arc_seconds, difference(0, 1) * to_arc_seconds};
}

}  // namespace meshrun::mesh_gnn
