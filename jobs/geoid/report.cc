#include "jobs/geoid/report.h"

#include <nlohmann/json.hpp>

#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun::geoid {
using jobs::absolute;
using jobs::format;
using jobs::ranks;

std::string summary(const Outcome& outcome, const Options& options) {
  std::string text = "geoid: ";
  if (outcome.held_out) {
    text += format("held-out RMSE %.3f m (field %.1f m) after ", outcome.held_out->rmse_m,
                   outcome.field_standard_deviation_m);
  }
  text += format("%lld steps on %s, %.1f s of training, %.0f samples/s",
                 static_cast<long long>(outcome.training.steps), ranks(outcome.world_size).c_str(),
                 outcome.training.seconds, outcome.training.samples_per_second);
  if (!options.report.empty()) text += "\ngeoid: report " + absolute(options.report);
  if (outcome.held_out && !options.png.empty()) text += "\ngeoid: picture " + absolute(options.png);
  return text;
}

void write_report(const Outcome& outcome, const Options& options) {
  using nlohmann::ordered_json;
  const auto& errors = outcome.held_out;
  const ordered_json report = {
      {"job", "geoid"},
      {"rmse_m", errors ? ordered_json(errors->rmse_m) : ordered_json()},
      {"largest_error_m", errors ? ordered_json(errors->largest_m) : ordered_json()},
      {"field_standard_deviation_m", outcome.field_standard_deviation_m},
      {"steps", outcome.training.steps},
      {"first_step", outcome.training.first_step},
      {"train_seconds", outcome.training.seconds},
      {"samples_per_second", outcome.training.samples_per_second},
      {"world_size", outcome.world_size},
      {"backend", outcome.backend},
      {"batch", options.batch},
      {"seed", options.seed},
      {"learning_rate", options.learning_rate},
      {"hidden", options.hidden},
      {"features", options.features},
      {"feature_scale", options.feature_scale},
      {"parameters", outcome.parameters},
      {"training_points", outcome.training_points},
      {"held_out_points", outcome.held_out_points},
      {"data", absolute(options.data)},
      {"png", absolute(options.png)},
      {"checkpoint_dir", absolute(options.checkpoint_dir)}};
  write_file_atomically(options.report, report.dump(2) + "\n");
}

void write_picture(const Prediction& prediction, const Outcome& outcome, const Options& options) {
  const auto hidden = static_cast<long long>(options.hidden);
  const std::string title = format(
      "The Earth's geoid, learnt by a %lld-%lld-%lld-%lld-1 network: held-out RMSE %.2f m after "
      "%lld steps on %s",
      static_cast<long long>(3 + 2 * options.features), hidden, hidden, hidden,
      outcome.held_out->rmse_m, static_cast<long long>(outcome.training.steps),
      ranks(outcome.world_size).c_str());
  const jobs::Image figure =
      draw_figure(prediction.map, prediction.truth_m, prediction.predicted_m, title);
  write_file_atomically(options.png, jobs::encode_png(figure));
}

}  // namespace meshrun::geoid
