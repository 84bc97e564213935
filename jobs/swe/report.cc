#include "jobs/swe/report.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "jobs/figures/panels.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun::swe {

using jobs::absolute;
using jobs::format;

std::string summary(const Outcome& outcome, const Options& options) {
  std::string text = "swe: ";
  if (outcome.test) {
    text += format(
        "relative L2 test error %.2f %% of one step (persistence %.1f %%), %.1f %% of %d "
        "(persistence %.1f %%) after ",
        100 * outcome.test->one_step, 100 * outcome.test->one_step_persistence,
        100 * outcome.test->rollout.back(), static_cast<int>(outcome.test->rollout.size()),
        100 * outcome.test->rollout_persistence.back());
  }
  text += format("%lld steps on %s (dp %d, spatial %d), %.1f s of training, %.1f samples/s",
                 static_cast<long long>(outcome.training.steps),
                 jobs::ranks(outcome.world_size).c_str(), outcome.data_ranks, outcome.spatial_ranks,
                 outcome.training.seconds, outcome.training.samples_per_second);
  if (!options.report.empty()) text += "\nswe: report " + absolute(options.report);
  if (outcome.test && !options.png.empty()) text += "\nswe: picture " + absolute(options.png);
  return text;
}

void write_report(const Outcome& outcome, const Options& options) {
  using nlohmann::ordered_json;
  const auto& test = outcome.test;
  const auto tested = [&](auto TestErrors::*value) {
    return test ? ordered_json(*test.*value) : ordered_json();
  };
  const ordered_json report = {
      {"job", "swe"},
      {"relative_l2_one_step", tested(&TestErrors::one_step)},
      {"relative_l2_one_step_persistence", tested(&TestErrors::one_step_persistence)},
      {"relative_l2_rollout", tested(&TestErrors::rollout)},
      {"relative_l2_rollout_persistence", tested(&TestErrors::rollout_persistence)},
      {"last_loss", outcome.training.loss},
      {"steps", outcome.training.steps},
      {"first_step", outcome.training.first_step},
      {"train_seconds", outcome.training.seconds},
      {"samples_per_second", outcome.training.samples_per_second},
      {"world_size", outcome.world_size},
      {"mesh", {{"dp", outcome.data_ranks}, {"spatial", outcome.spatial_ranks}}},
      {"backend", outcome.backend},
      {"data", outcome.data_origin},
      {"data_seconds", outcome.data_seconds},
      {"size", options.size},
      {"interval", options.interval},
      {"intervals", options.intervals},
      {"train_trajectories", options.train_trajectories},
      {"test_trajectories", options.test_trajectories},
      {"batch", options.batch},
      {"seed", options.seed},
      {"learning_rate", options.learning_rate},
      {"weight_decay", options.weight_decay},
      {"width", options.width},
      {"modes", options.modes},
      {"layers", options.layers},
      {"png", absolute(options.png)},
      {"checkpoint_dir", absolute(options.checkpoint_dir)}};
  write_file_atomically(options.report, report.dump(2) + "\n");
}

void write_picture(const Shown& shown, const Outcome& outcome, const Options& options) {
  const std::string title =
      format("Depth - 1 at %lld x %lld: error of a step %.2f %%, ",
             static_cast<long long>(shown.size), static_cast<long long>(shown.size),
             100 * outcome.test->one_step) +
      jobs::ranks(outcome.world_size);
  std::vector<std::vector<float>> errors;
  errors.reserve(shown.moments.size());  // panels refer to them
  std::vector<std::vector<jobs::FieldPanel>> rows;
  for (const Shown::Moment& moment : shown.moments) {
    std::vector<float>& error = errors.emplace_back(moment.truth.size());
    std::transform(moment.predicted.begin(), moment.predicted.end(), moment.truth.begin(),
                   error.begin(), std::minus());
    const auto panel = [&](const std::string& name, const std::vector<float>& values,
                           double limit) {
      const int size = static_cast<int>(shown.size);
      return jobs::FieldPanel{name, values, size, size, limit, true};
    };
    const std::string when =
        format(", t = %.3g", static_cast<double>(moment.steps) * options.interval);
    const double depth = jobs::limit_of(moment.truth);
    rows.push_back({panel("Solved" + when, moment.truth, depth),
                    panel("Predicted" + when, moment.predicted, depth),
                    panel("Predicted - solved", error, jobs::limit_of(error))});
  }
  write_file_atomically(options.png, jobs::encode_png(jobs::draw_panels(title, rows)));
}

}  // namespace meshrun::swe
