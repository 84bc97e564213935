#include "jobs/runtime/operator_ending.h"

#include "jobs/runtime/words.h"

namespace meshrun::jobs {

void finish_operator(ElasticContext& elastic, const OperatorOptions& options,
                     const TrainingResult& training, const torch::nn::Module& network,
                     const RankMesh& mesh, Ending ending) {
  const int data = mesh.data->getSize();
  const int spatial = mesh.spatial->getSize();
  const double samples_per_second = training.samples_per_second(options.batch);
  ending.ranks = ranks(mesh.world->getSize()) + format(" (dp %d, spatial %d)", data, spatial);
  ending.rate = format("%.1f samples/s", samples_per_second);
  ending.entries.update({{"mesh", {{"dp", data}, {"spatial", spatial}}},
                         {"samples_per_second", samples_per_second},
                         {"batch", options.batch},
                         {"weight_decay", options.weight_decay},
                         {"width", options.width},
                         {"modes", options.modes},
                         {"layers", options.layers}});
  finish(elastic, options, training, network, ending);
}

}  // namespace meshrun::jobs
