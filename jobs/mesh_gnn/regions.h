// Which parts of the Earth are kept for the evaluation. Pure, without LibTorch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "jobs/mesh_gnn/sphere.h"
#include "jobs/runtime/random.h"

namespace meshrun::mesh_gnn {

// True in about `fraction` of the tiles that the sphere is cut into: 15 degrees high, and about as
// wide. The same tiles in every run: a network that is trained elsewhere has seen no slope in them.
inline bool is_held_out(const Vector& point, double fraction) {
  constexpr double kTile = 15;
  constexpr int64_t kBands = 12;
  const double latitude = std::asin(std::clamp(point[2], -1.0, 1.0)) / kDegree;
  const double longitude = std::atan2(point[1], point[0]) / kDegree + 180;
  const int64_t band =
      std::clamp<int64_t>(static_cast<int64_t>((latitude + 90) / kTile), 0, kBands - 1);
  const double middle = (static_cast<double>(band) + 0.5) * kTile - 90;
  const auto tiles = static_cast<int64_t>(std::lround(360 / kTile * std::cos(middle * kDegree)));
  const int64_t tile =
      std::min(static_cast<int64_t>(longitude / 360 * static_cast<double>(tiles)), tiles - 1);
  const auto number = static_cast<uint64_t>(band * 100 + tile);
  return static_cast<double>(jobs::mix(number) >> 11) * 0x1p-53 < fraction;
}

}  // namespace meshrun::mesh_gnn
