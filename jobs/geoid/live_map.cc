#include "jobs/geoid/live_map.h"

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>

#include "agent/picture.h"
#include "jobs/geoid/evaluation.h"
#include "jobs/geoid/figure.h"
#include "jobs/runtime/words.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::geoid {
namespace {

// Three of them lie beside each other.
constexpr int64_t kColumns = 180;
constexpr std::chrono::seconds kLeastInterval(3);
// The next map waits for so many times what the last one took.
constexpr int kShare = 100;

}  // namespace

LiveMap::LiveMap(GeoidNetwork& network, const Field& field)
    : network_(network),
      field_(field),
      draws_(agent::ShowsPictures() && DistributedManager::get().rank() == 0),
      next_(Clock::now()) {}

void LiveMap::update(int64_t steps, double rmse_m) {
  if (draws_ && Clock::now() >= next_) draw(steps, rmse_m);
}

void LiveMap::finish(int64_t steps, double rmse_m) {
  if (draws_) draw(steps, rmse_m);
}

void LiveMap::draw(int64_t steps, double rmse_m) {
  const auto begin = Clock::now();
  std::string problem;
  // No training ends for its picture.
  try {
    const Prediction prediction =
        predict_map_alone(network_, field_, kColumns, DistributedManager::get().device());
    const std::string title =
        jobs::format("Geoid after %lld steps: RMSE %.2f m", static_cast<long long>(steps), rmse_m);
    problem = agent::ShowPicture("geoid.png",
                                 jobs::encode_png(draw_figure(prediction.map, prediction.truth_m,
                                                              prediction.predicted_m, title)));
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (!problem.empty()) {
    draws_ = false;
    std::cerr << "geoid: no more maps are shown: " << problem << std::endl;
  }
  const auto cost = Clock::now() - begin;
  next_ = begin + std::max<Clock::duration>(kShare * cost, kLeastInterval);
}

}  // namespace meshrun::geoid
