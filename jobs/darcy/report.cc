#include "jobs/darcy/report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "jobs/figures/panels.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun::darcy {

using jobs::absolute;
using jobs::format;

std::string summary(const Outcome& outcome, const Options& options) {
  std::string text = "darcy: ";
  if (outcome.test) {
    text += format("relative L2 test error %.2f %% after ", 100 * outcome.test->relative_l2);
  }
  text += format("%lld steps on %s (dp %d, spatial %d), %.1f s of training, %.1f samples/s",
                 static_cast<long long>(outcome.training.steps),
                 jobs::ranks(outcome.world_size).c_str(), outcome.data_ranks, outcome.spatial_ranks,
                 outcome.training.seconds, outcome.training.samples_per_second);
  if (!options.report.empty()) text += "\ndarcy: report " + absolute(options.report);
  if (outcome.test && !options.png.empty()) text += "\ndarcy: picture " + absolute(options.png);
  return text;
}

void write_report(const Outcome& outcome, const Options& options) {
  using nlohmann::ordered_json;
  const auto& test = outcome.test;
  const ordered_json report = {
      {"job", "darcy"},
      {"relative_l2_test", test ? ordered_json(test->relative_l2) : ordered_json()},
      {"worst_relative_l2_test", test ? ordered_json(test->worst) : ordered_json()},
      {"last_loss", outcome.training.loss},
      {"steps", outcome.training.steps},
      {"first_step", outcome.training.first_step},
      {"train_seconds", outcome.training.seconds},
      {"samples_per_second", outcome.training.samples_per_second},
      {"world_size", outcome.world_size},
      {"mesh", {{"dp", outcome.data_ranks}, {"spatial", outcome.spatial_ranks}}},
      {"backend", outcome.backend},
      {"data", outcome.data_origin},
      {"data_solved", outcome.data_solved},
      {"data_seconds", outcome.data_seconds},
      {"rows", outcome.shape.rows},
      {"columns", outcome.shape.columns},
      {"train_samples", options.train_samples},
      {"test_samples", options.test_samples},
      {"batch", options.batch},
      {"seed", options.seed},
      {"learning_rate", options.learning_rate},
      {"weight_decay", options.weight_decay},
      {"width", options.width},
      {"modes", options.modes},
      {"layers", options.layers},
      {"padding", options.padding},
      {"parameters", outcome.parameters},
      {"png", absolute(options.png)},
      {"checkpoint_dir", absolute(options.checkpoint_dir)}};
  write_file_atomically(options.report, report.dump(2) + "\n");
}

void write_picture(const Shown& shown, const Outcome& outcome, const Options& options) {
  const std::string title =
      format("Darcy flow at %lld x %lld: relative L2 test error %.2f %% after %lld steps on ",
             static_cast<long long>(shown.rows), static_cast<long long>(shown.columns),
             100 * outcome.test->relative_l2, static_cast<long long>(outcome.training.steps)) +
      jobs::ranks(outcome.world_size);
  std::vector<std::vector<float>> errors;
  errors.reserve(shown.samples.size());  // panels refer to them
  std::vector<std::vector<jobs::FieldPanel>> rows;
  for (const Shown::Sample& sample : shown.samples) {
    std::vector<float>& error = errors.emplace_back(sample.truth.size());
    std::transform(sample.predicted.begin(), sample.predicted.end(), sample.truth.begin(),
                   error.begin(), std::minus());
    const double pressure = jobs::limit_of(sample.truth);
    const auto panel = [&](const char* name, const std::vector<float>& values, double limit,
                           bool is_signed) {
      return jobs::FieldPanel{
          name,  values,   static_cast<int>(shown.rows), static_cast<int>(shown.columns),
          limit, is_signed};
    };
    rows.push_back(
        {panel("Permeability", sample.permeability, jobs::limit_of(sample.permeability), false),
         panel("Pressure, solved", sample.truth, pressure, false),
         panel("Pressure, predicted", sample.predicted, pressure, false),
         panel("Predicted - solved", error, jobs::limit_of(error), true)});
  }
  write_file_atomically(options.png, jobs::encode_png(jobs::draw_panels(title, rows)));
}

}  // namespace meshrun::darcy
