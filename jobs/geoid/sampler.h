// Which points of the grid are trained on, which are held out, and which make up each batch.
//
// Everything here is a pure function of its arguments, so that all ranks agree without a message:
// the global batch of a step depends on (seed, step) alone, never on the number of ranks. A rank
// trains on its slice of it.
#pragma once

#include <cstdint>
#include <vector>

namespace meshrun::geoid {

// True for about `fraction` of all points, chosen by a hash of the index: the same points in every
// run.
bool is_held_out(int64_t point, double fraction);

struct PointSplit {
  std::vector<int64_t> training;
  std::vector<int64_t> held_out;
};

// Both lists ascending. Raises std::invalid_argument unless 0 <= held_out_fraction < 1, or where no
// point is left to train on.
PointSplit split_points(int64_t num_points, double held_out_fraction);

// Positions in [0, num_points) of the global batch of `step`, drawn with replacement.
std::vector<int64_t> global_batch(uint64_t seed, int64_t step, int64_t batch_size,
                                  int64_t num_points);

}  // namespace meshrun::geoid
