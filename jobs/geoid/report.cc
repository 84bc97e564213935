#include "jobs/geoid/report.h"

#include "jobs/runtime/ending.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::geoid {

using jobs::absolute;
using jobs::format;
using jobs::ranks;

void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const GeoidNetwork& network) {
  const double samples_per_second = outcome.training.samples_per_second(options.batch);
  jobs::Ending ending = {.ranks = ranks(DistributedManager::get().world_size()),
                         .rate = format("%.0f samples/s", samples_per_second)};
  const auto& errors = outcome.held_out;
  if (errors) {
    ending.result = format("held-out RMSE %.3f m (field %.1f m)", errors->rmse_m,
                           outcome.field_standard_deviation_m);
    ending.metrics = {{"rmse_m", errors->rmse_m}};
  }
  using nlohmann::ordered_json;
  ending.entries = {{"rmse_m", errors ? ordered_json(errors->rmse_m) : ordered_json()},
                    {"largest_error_m", errors ? ordered_json(errors->largest_m) : ordered_json()},
                    {"field_standard_deviation_m", outcome.field_standard_deviation_m},
                    {"samples_per_second", samples_per_second},
                    {"batch", options.batch},
                    {"hidden", options.hidden},
                    {"features", options.features},
                    {"feature_scale", options.feature_scale},
                    {"training_points", outcome.training_points},
                    {"held_out_points", outcome.held_out_points},
                    {"data", absolute(options.data)}};
  jobs::finish(elastic, options, outcome.training, *network, ending);
}

void write_picture(const Prediction& prediction, const Outcome& outcome, const Options& options) {
  const auto hidden = static_cast<long long>(options.hidden);
  const std::string title = format(
      "The Earth's geoid, learnt by a %lld-%lld-%lld-%lld-1 network: held-out RMSE %.2f m after "
      "%lld steps on %s",
      static_cast<long long>(3 + 2 * options.features), hidden, hidden, hidden,
      outcome.held_out->rmse_m, static_cast<long long>(outcome.training.steps),
      ranks(DistributedManager::get().world_size()).c_str());
  const jobs::Image figure =
      draw_figure(prediction.map, prediction.truth_m, prediction.predicted_m, title);
  write_file_atomically(options.png, jobs::encode_png(figure));
}

}  // namespace meshrun::geoid
