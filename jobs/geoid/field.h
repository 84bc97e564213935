// The field to learn as tensors: points on the unit sphere, their undulation, their weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "jobs/geoid/gtx.h"

namespace meshrun::geoid {

class Field {
 public:
  explicit Field(GtxGrid grid);

  const GtxGrid& grid() const { return grid_; }
  // Mean and standard deviation of all points, weighted by the area that they stand for, in metres.
  double mean_m() const { return mean_m_; }
  double standard_deviation_m() const { return standard_deviation_m_; }

  // cos(latitude): the area that a point stands for, relative to the equator's.
  double weight(int64_t point) const { return row_weights_[point / grid_.columns]; }

  struct Samples {
    at::Tensor positions;  // [n, 3] f32, on the unit sphere
    at::Tensor targets;    // [n] f32, (undulation - mean) / standard deviation
    at::Tensor weights;    // [n] f32
  };
  // On the CPU.
  Samples samples(std::span<const int64_t> points) const;

 private:
  GtxGrid grid_;
  double mean_m_ = 0;
  double standard_deviation_m_ = 1;
  std::vector<double> row_weights_;
  std::vector<double> row_sines_;
  std::vector<double> column_cosines_;
  std::vector<double> column_sines_;
};

}  // namespace meshrun::geoid
