#include "jobs/darcy/report.h"

#include <vector>

#include "jobs/figures/panels.h"
#include "jobs/runtime/operator_ending.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::darcy {

using jobs::format;

void finish(const Outcome& outcome, const Options& options, const DarcyNetwork& network,
            const jobs::RankMesh& mesh) {
  jobs::Ending ending;
  const auto& test = outcome.test;
  if (test) {
    ending.result = format("relative L2 test error %.2f %%", 100 * test->relative_l2);
    ending.metrics = {{"relative_l2_test", test->relative_l2}};
  }
  using nlohmann::ordered_json;
  ending.entries = {{"relative_l2_test", test ? ordered_json(test->relative_l2) : ordered_json()},
                    {"worst_relative_l2_test", test ? ordered_json(test->worst) : ordered_json()},
                    {"data", outcome.data_origin},
                    {"data_solved", outcome.data_solved},
                    {"data_seconds", outcome.data_seconds},
                    {"rows", outcome.shape.rows},
                    {"columns", outcome.shape.columns},
                    {"train_samples", options.train_samples},
                    {"test_samples", options.test_samples},
                    {"padding", options.padding}};
  jobs::finish_operator(options, outcome.training, *network, mesh, ending);
}

void write_picture(const Shown& shown, const Outcome& outcome, const Options& options) {
  const std::string title =
      format("Darcy flow at %lld x %lld: relative L2 test error %.2f %% after %lld steps on ",
             static_cast<long long>(shown.rows), static_cast<long long>(shown.columns),
             100 * outcome.test->relative_l2, static_cast<long long>(outcome.training.steps)) +
      jobs::ranks(DistributedManager::get().world_size());
  std::vector<std::vector<float>> errors;
  errors.reserve(shown.samples.size());  // panels refer to them
  std::vector<std::vector<jobs::FieldPanel>> rows;
  for (const Shown::Sample& sample : shown.samples) {
    const std::vector<float>& error =
        errors.emplace_back(jobs::difference(sample.predicted, sample.truth));
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
