#include "jobs/swe/report.h"

#include <vector>

#include "jobs/figures/panels.h"
#include "jobs/runtime/operator_ending.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::swe {

using jobs::format;

void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const SweNetwork& network, const jobs::RankMesh& mesh) {
  jobs::Ending ending;
  const auto& test = outcome.test;
  if (test) {
    ending.result = format(
        "relative L2 test error %.2f %% of one step (persistence %.1f %%), %.1f %% of %d "
        "(persistence %.1f %%)",
        100 * test->one_step, 100 * test->one_step_persistence, 100 * test->rollout.back(),
        static_cast<int>(test->rollout.size()), 100 * test->rollout_persistence.back());
    ending.metrics = {{"relative_l2_one_step", test->one_step},
                      {"relative_l2_rollout", test->rollout.back()}};
  }
  using nlohmann::ordered_json;
  const auto tested = [&](auto TestErrors::*value) {
    return test ? ordered_json(*test.*value) : ordered_json();
  };
  ending.entries = {{"relative_l2_one_step", tested(&TestErrors::one_step)},
                    {"relative_l2_one_step_persistence", tested(&TestErrors::one_step_persistence)},
                    {"relative_l2_rollout", tested(&TestErrors::rollout)},
                    {"relative_l2_rollout_persistence", tested(&TestErrors::rollout_persistence)},
                    {"data", outcome.data_origin},
                    {"data_seconds", outcome.data_seconds},
                    {"size", options.size},
                    {"interval", options.interval},
                    {"intervals", options.intervals},
                    {"train_trajectories", options.train_trajectories},
                    {"test_trajectories", options.test_trajectories}};
  jobs::finish_operator(elastic, options, outcome.training, *network, mesh, ending);
}

void write_picture(const Shown& shown, const Outcome& outcome, const Options& options) {
  const std::string title =
      format("Depth - 1 at %lld x %lld: error of a step %.2f %%, ",
             static_cast<long long>(shown.size), static_cast<long long>(shown.size),
             100 * outcome.test->one_step) +
      jobs::ranks(DistributedManager::get().world_size());
  std::vector<std::vector<float>> errors;
  errors.reserve(shown.moments.size());  // panels refer to them
  std::vector<std::vector<jobs::FieldPanel>> rows;
  for (const Shown::Moment& moment : shown.moments) {
    const std::vector<float>& error =
        errors.emplace_back(jobs::difference(moment.predicted, moment.truth));
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
