#include "jobs/geoid/sampler.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace meshrun::geoid {
namespace {

// Keeps the streams of the hold-out and of the batches apart.
constexpr uint64_t kHeldOutStream = 0x6765'6f69'6400'0001;
constexpr uint64_t kBatchStream = 0x6765'6f69'6400'0002;

// Maps a uniform 64-bit value onto [0, bound) by the high half of the product (Lemire); the bias of
// bound / 2^64 is below 1e-13 here.
int64_t scale_to(uint64_t value, int64_t bound) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(value) * bound >> 64);
}

}  // namespace

uint64_t mix(uint64_t value) {
  value += 0x9e37'79b9'7f4a'7c15;
  value = (value ^ value >> 30) * 0xbf58'476d'1ce4'e5b9;
  value = (value ^ value >> 27) * 0x94d0'49bb'1331'11eb;
  return value ^ value >> 31;
}

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
