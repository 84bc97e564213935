#include "jobs/darcy/report.h"

#include "jobs/runtime/operator_ending.h"
#include "jobs/runtime/words.h"

namespace meshrun::darcy {

using jobs::format;

void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const DarcyNetwork& network, const jobs::RankMesh& mesh) {
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
  jobs::finish_operator(elastic, options, outcome.training, *network, mesh, ending);
}

}  // namespace meshrun::darcy
