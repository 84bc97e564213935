// The geoid averaged over a neighbourhood, its height and slope at any point. Pure, without
// LibTorch.
//
// A mesh cannot carry what is smaller than its triangles: the field to learn is the geoid after a
// Gaussian filter of about that size. The slope is the deflection of the vertical, as geodesy
// calls it, with the opposite sign: Hofmann-Wellenhof and Moritz, "Physical Geodesy" (2006), 2.18.
#pragma once

#include <cstdint>
#include <vector>

#include "jobs/geoid/gtx.h"
#include "jobs/mesh_gnn/sphere.h"

namespace meshrun::mesh_gnn {

struct Slope {
  double east = 0;  // arc seconds
  double north = 0;
};

class SmoothGeoid {
 public:
  // `width_degrees`: the filter's standard deviation; at least that of the field's own grid is
  // sensible. The field must cover the sphere. Takes about half a second for EGM96.
  SmoothGeoid(const geoid::GtxGrid& field, double width_degrees);

  double height_m(const Vector& point) const;
  // From differences over a third of the filter's width.
  Slope slope(const Vector& point) const;

  // Over the sphere: root mean squares about the mean, and of one component of the slope.
  double height_scale_m() const { return height_scale_m_; }
  double slope_scale() const { return slope_scale_; }
  double mean_m() const { return mean_m_; }

 private:
  void measure();

  double step_degrees_ = 1;
  double difference_radians_ = 0;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<float> metres_;  // pole to pole, south first; from longitude -180
  double mean_m_ = 0;
  double height_scale_m_ = 1;
  double slope_scale_ = 1;
};

}  // namespace meshrun::mesh_gnn
