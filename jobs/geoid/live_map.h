// The map as the network knows it while it learns, on the coordinator's page. Rank 0 draws it
// alone, with its copy of the parameters: no other rank takes part, and no number of the training
// depends on it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>

#include "jobs/geoid/field.h"
#include "jobs/geoid/network.h"

namespace meshrun::geoid {

class LiveMap {
 public:
  // The arguments must outlive this. Outside meshrun, and on other ranks than 0, nothing is drawn.
  LiveMap(GeoidNetwork& network, const Field& field);

  // `steps` have been done, `rmse_m` is the error on the last batch. Draws a map where the last one
  // is so old that all of them together take less than 1 % of the time.
  void update(int64_t steps, double rmse_m);
  // Draws one in any case: the last.
  void finish(int64_t steps, double rmse_m);

 private:
  using Clock = std::chrono::steady_clock;

  void draw(int64_t steps, double rmse_m);

  GeoidNetwork& network_;
  const Field& field_;
  bool draws_;
  Clock::time_point next_;
};

}  // namespace meshrun::geoid
