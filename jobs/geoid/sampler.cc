#include "jobs/geoid/sampler.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "jobs/runtime/random.h"

namespace meshrun::geoid {
namespace {

using jobs::mix;
using jobs::scale_to;

// Keeps the streams of the hold-out and of the batches apart.
constexpr uint64_t kHeldOutStream = 0x6765'6f69'6400'0001;
constexpr uint64_t kBatchStream = 0x6765'6f69'6400'0002;

}  // namespace

bool is_held_out(int64_t point, double fraction) {
  const uint64_t hash = mix(kHeldOutStream ^ mix(static_cast<uint64_t>(point)));
  return std::ldexp(static_cast<double>(hash >> 11), -53) < fraction;
}

PointSplit split_points(int64_t num_points, double held_out_fraction) {
  if (!(held_out_fraction >= 0 && held_out_fraction < 1)) {
    throw std::invalid_argument("the held-out fraction must be at least 0 and below 1, got " +
                                std::to_string(held_out_fraction));
  }
  PointSplit split;
  for (int64_t point = 0; point < num_points; ++point) {
    (is_held_out(point, held_out_fraction) ? split.held_out : split.training).push_back(point);
  }
  if (split.training.empty()) {
    throw std::invalid_argument("no point is left to train on: " + std::to_string(num_points) +
                                " points, of which the fraction " +
                                std::to_string(held_out_fraction) + " is held out");
  }
  return split;
}

std::vector<int64_t> global_batch(uint64_t seed, int64_t step, int64_t batch_size,
                                  int64_t num_points) {
  const uint64_t stream = mix(mix(kBatchStream ^ mix(seed)) ^ static_cast<uint64_t>(step));
  std::vector<int64_t> positions(batch_size);
  for (int64_t i = 0; i < batch_size; ++i) {
    positions[i] = scale_to(mix(stream + static_cast<uint64_t>(i)), num_points);
  }
  return positions;
}

}  // namespace meshrun::geoid
