// Which samples make up each batch, where every sample comes once in an epoch.
//
// A pure function of (seed, step), so that all ranks agree without a message, and a run that
// resumes on another number of ranks draws the same samples next. A batch may take its first part
// from one epoch and the rest from the next. Threads: one at a time.
#pragma once

#include <cstdint>
#include <vector>

namespace meshrun::jobs {

class EpochSampler {
 public:
  // Raises std::invalid_argument where there are no samples.
  EpochSampler(uint64_t seed, int64_t samples);

  // The global batch of `step`, each at least 0 and below `samples`.
  std::vector<int64_t> batch(int64_t step, int64_t batch_size);

 private:
  // The epoch's order.
  const std::vector<int64_t>& order(int64_t epoch);

  const uint64_t seed_;
  const int64_t samples_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace meshrun::jobs
