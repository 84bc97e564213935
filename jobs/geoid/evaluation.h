// How well the network knows the field. Each rank evaluates its share of the points.
#pragma once

#include <cstdint>
#include <span>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "jobs/geoid/field.h"
#include "jobs/geoid/figure.h"
#include "jobs/geoid/network.h"

namespace meshrun::geoid {

// The functions with a `group` are collective over it, and return the same on every rank.

struct Errors {
  double rmse_m = 0;  // weighted by area
  double largest_m = 0;
};
Errors evaluate(GeoidNetwork& network, const Field& field, std::span<const int64_t> points,
                c10::Device device, c10d::ProcessGroup& group);

struct Prediction {
  Map map;
  std::vector<float> truth_m;
  std::vector<float> predicted_m;
};
// The whole field, thinned to at most `max_columns` points from west to east.
Prediction predict_map(GeoidNetwork& network, const Field& field, int64_t max_columns,
                       c10::Device device, c10d::ProcessGroup& group);
// The same by this rank alone.
Prediction predict_map_alone(GeoidNetwork& network, const Field& field, int64_t max_columns,
                             c10::Device device);

}  // namespace meshrun::geoid
