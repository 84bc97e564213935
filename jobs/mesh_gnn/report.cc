#include "jobs/mesh_gnn/report.h"

#include "jobs/figures/panels.h"
#include "jobs/runtime/ending.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::mesh_gnn {

using jobs::absolute;
using jobs::format;
using jobs::ranks;

void finish(ElasticContext& elastic, const Outcome& outcome, const Options& options,
            const GraphNetwork& network) {
  jobs::Ending ending = {.ranks = ranks(DistributedManager::get().world_size()),
                         .rate = format("%.2f steps/s", outcome.training.steps_per_second())};
  const auto& errors = outcome.held_out;
  if (errors) {
    ending.result = format("held-out RMSE %.3f\" (planes %.3f\", slope %.2f\")", errors->rmse,
                           errors->rmse_of_planes, errors->slope);
    ending.metrics = {{"rmse_arcsec", errors->rmse}};
  }
  using nlohmann::ordered_json;
  const auto known = [&](auto Errors::*member) {
    return errors ? ordered_json(*errors.*member) : ordered_json();
  };
  ending.entries = {{"rmse_arcsec", known(&Errors::rmse)},
                    {"rmse_of_planes_arcsec", known(&Errors::rmse_of_planes)},
                    {"slope_rms_arcsec", known(&Errors::slope)},
                    {"held_out_nodes", known(&Errors::nodes)},
                    {"level", options.level},
                    {"nodes", outcome.nodes},
                    {"edges", outcome.edges},
                    {"edge_degrees", outcome.edge_degrees},
                    {"partition", options.partition},
                    {"nodes_of_ranks", outcome.own_nodes},
                    {"halo_nodes_of_ranks", outcome.halo_nodes},
                    {"smoothing_edges", options.smoothing},
                    {"hidden", options.hidden},
                    {"blocks", options.blocks},
                    {"held_out", options.held_out},
                    {"data", absolute(options.data)}};
  jobs::finish(elastic, options, outcome.training, *network, ending);
}

void write_picture(const SlopeMaps& maps, const Outcome& outcome, const Options& options) {
  const std::string title =
      format("Slope of the geoid, arc seconds: RMSE %.2f", outcome.held_out->rmse);
  std::vector<std::vector<float>> errors(maps.truth.size());
  std::vector<std::vector<jobs::FieldPanel>> rows;
  const char* const names[] = {"east", "north"};
  for (size_t c = 0; c < maps.truth.size(); ++c) {
    errors[c] = jobs::difference(maps.predicted[c], maps.truth[c]);
    const double limit = jobs::limit_of(maps.truth[c]);
    const auto panel = [&](const std::string& what, const std::vector<float>& values, double end) {
      return jobs::FieldPanel{what + ", " + names[c], values, maps.rows, maps.columns, end, true};
    };
    rows.push_back({panel("Truth", maps.truth[c], limit),
                    panel("Prediction", maps.predicted[c], limit),
                    panel("Error", errors[c], jobs::limit_of(errors[c]))});
  }
  write_file_atomically(options.png, jobs::encode_png(jobs::draw_panels(title, rows)));
}

}  // namespace meshrun::mesh_gnn
