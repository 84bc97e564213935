// The parts of the mesh_gnn job that need no network.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "jobs/mesh_gnn/regions.h"
#include "jobs/mesh_gnn/smooth_geoid.h"
#include "jobs/mesh_gnn/sphere.h"

namespace meshrun::mesh_gnn {
namespace {

geoid::GtxGrid grid_of(const std::function<double(const Vector&)>& metres) {
  geoid::GtxGrid grid;
  grid.south = -90;
  grid.west = -180;
  grid.latitude_step = grid.longitude_step = 1;
  grid.rows = 181;
  grid.columns = 360;
  for (int64_t row = 0; row < grid.rows; ++row) {
    for (int64_t column = 0; column < grid.columns; ++column) {
      grid.metres.push_back(
          static_cast<float>(metres(point_at(grid.latitude(row), grid.longitude(column)))));
    }
  }
  return grid;
}

TEST(MeshGnnSphereTest, RotationsAreRotationsAndDifferAndFramesTurnLeft) {
  Vector mean = {0, 0, 0};
  constexpr int kMany = 4000;
  for (uint64_t number = 0; number < kMany; ++number) {
    const Rotation r = random_rotation(number);
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(dot(r[i], r[j]), i == j ? 1 : 0, 1e-12);
    }
    const Vector p = rotated(r, {0, 0, 1});
    mean = sum(mean, 1.0 / kMany, p);
    const Frame frame = frame_at(p);
    EXPECT_NEAR(dot(frame.east, p), 0, 1e-12);
    EXPECT_NEAR(dot(frame.north, frame.east), 0, 1e-12);
    EXPECT_NEAR(dot(frame.north, frame.north), 1, 1e-12);
    EXPECT_GE(frame.north[2], 0);
  }
  EXPECT_LT(std::sqrt(dot(mean, mean)), 0.05) << "no direction is preferred";
}

TEST(MeshGnnSmoothGeoidTest, SlopesOfAPlaneFieldAreItsGradient) {
  // 100 m times the cosine of the angle to a direction. A filter keeps its shape.
  const Vector direction = normalised({1, 2, -3});
  const SmoothGeoid geoid(grid_of([&](const Vector& p) { return 100 * dot(p, direction); }), 3);
  // Metres per radian, in arc seconds of slope.
  const double unit = 100.0 / 6'371'000 / kDegree * 3600;
  for (uint64_t number = 0; number < 200; ++number) {
    const Vector p = rotated(random_rotation(number), {0, 0, 1});
    const Frame frame = frame_at(p);
    EXPECT_NEAR(geoid.height_m(p), 100 * dot(p, direction), 0.5);
    const Slope slope = geoid.slope(p);
    EXPECT_NEAR(slope.east, unit * dot(frame.east, direction), 0.02 * unit);
    EXPECT_NEAR(slope.north, unit * dot(frame.north, direction), 0.02 * unit);
  }
  EXPECT_NEAR(geoid.mean_m(), 0, 0.1);
  EXPECT_NEAR(geoid.height_scale_m(), 100 / std::sqrt(3.0), 0.5);
  EXPECT_NEAR(geoid.slope_scale(), unit / std::sqrt(3.0), 0.01 * unit);
}

TEST(MeshGnnSmoothGeoidTest, WhatIsSmallerThanTheFilterIsGoneAndAConstantHasNoScale) {
  const auto waves = [](const Vector& p) { return std::cos(60 * std::atan2(p[1], p[0])); };
  const SmoothGeoid fine(grid_of(waves), 6);
  EXPECT_LT(std::abs(fine.height_m(point_at(0, 0))), 0.1);
  const SmoothGeoid flat(grid_of([](const Vector&) { return 7; }), 3);
  EXPECT_NEAR(flat.height_m(point_at(90, 0)), 7, 1e-5);
  EXPECT_EQ(flat.height_scale_m(), 1);
  EXPECT_EQ(flat.slope_scale(), 1);
}

TEST(MeshGnnRegionsTest, HeldOutTilesAreAboutTheirShareOfTheSphereAndNested) {
  int few = 0;
  int many = 0;
  constexpr int kPoints = 20'000;
  for (uint64_t number = 0; number < kPoints; ++number) {
    const Vector p = rotated(random_rotation(number), {0, 0, 1});
    const bool is_few = is_held_out(p, 0.2);
    const bool is_many = is_held_out(p, 0.5);
    EXPECT_LE(is_few, is_many);
    few += is_few ? 1 : 0;
    many += is_many ? 1 : 0;
  }
  EXPECT_NEAR(few / double{kPoints}, 0.2, 0.06);
  EXPECT_NEAR(many / double{kPoints}, 0.5, 0.06);
  EXPECT_EQ(is_held_out(point_at(90, 0), 0.5), is_held_out(point_at(89.9, 0), 0.5));
}

}  // namespace
}  // namespace meshrun::mesh_gnn
