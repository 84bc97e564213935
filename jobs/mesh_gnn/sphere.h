// Points on the unit sphere, their frames, and rotations. Pure, without LibTorch.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "jobs/runtime/random.h"

namespace meshrun::mesh_gnn {

inline constexpr double kDegree = std::numbers::pi / 180;
inline constexpr double kArcSecond = kDegree / 3600;
inline constexpr double kEarthRadiusM = 6'371'000;

using Vector = std::array<double, 3>;

inline double dot(const Vector& a, const Vector& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
}

inline Vector sum(const Vector& a, double factor, const Vector& b) {
  return {a[0] + factor * b[0], a[1] + factor * b[1], a[2] + factor * b[2]};
}

inline Vector normalised(const Vector& a) {
  const double length = std::sqrt(dot(a, a));
  return {a[0] / length, a[1] / length, a[2] / length};
}

inline Vector point_at(double latitude_degrees, double longitude_degrees) {
  const double latitude = latitude_degrees * kDegree;
  const double longitude = longitude_degrees * kDegree;
  return {std::cos(latitude) * std::cos(longitude), std::cos(latitude) * std::sin(longitude),
          std::sin(latitude)};
}

// East and north at a point. At the poles east is the y axis.
struct Frame {
  Vector east;
  Vector north;
};

inline Frame frame_at(const Vector& p) {
  const double across = std::hypot(p[0], p[1]);
  const Vector east = across > 1e-12 ? Vector{-p[1] / across, p[0] / across, 0} : Vector{0, 1, 0};
  return {east,
          {p[1] * east[2] - p[2] * east[1], p[2] * east[0] - p[0] * east[2],
           p[0] * east[1] - p[1] * east[0]}};
}

// Rows of an orthogonal matrix.
using Rotation = std::array<Vector, 3>;

inline Vector rotated(const Rotation& rotation, const Vector& p) {
  return {dot(rotation[0], p), dot(rotation[1], p), dot(rotation[2], p)};
}

// Uniform over all rotations, a function of the number alone. Shoemake, "Uniform Random Rotations"
// (1992).
inline Rotation random_rotation(uint64_t number) {
  const auto uniform = [&](uint64_t stream) {
    return static_cast<double>(jobs::mix(jobs::mix(number) + stream) >> 11) * 0x1p-53;
  };
  const double u = uniform(1);
  const double a = 2 * std::numbers::pi * uniform(2);
  const double b = 2 * std::numbers::pi * uniform(3);
  const double x = std::sqrt(1 - u) * std::sin(a);
  const double y = std::sqrt(1 - u) * std::cos(a);
  const double z = std::sqrt(u) * std::sin(b);
  const double w = std::sqrt(u) * std::cos(b);
  return {{{1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)},
           {2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)},
           {2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)}}};
}

}  // namespace meshrun::mesh_gnn
