#include "jobs/mesh_gnn/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "jobs/figures/panels.h"
#include "jobs/runtime/words.h"
#include "parallel/checkpoint/atomic_file.h"

namespace meshrun::mesh_gnn {

using jobs::absolute;
using jobs::format;
using jobs::ranks;

std::string summary(const Outcome& outcome, const Options& options) {
  std::string text = "mesh_gnn: ";
  if (outcome.held_out) {
    text +=
        format("held-out RMSE %.3f\" (planes %.3f\", slope %.2f\") after ", outcome.held_out->rmse,
               outcome.held_out->rmse_of_planes, outcome.held_out->slope);
  }
  text += format("%lld steps on %s, %.1f s of training, %.2f steps/s",
                 static_cast<long long>(outcome.training.steps), ranks(outcome.world_size).c_str(),
                 outcome.training.seconds, outcome.training.steps_per_second);
  if (!options.report.empty()) text += "\nmesh_gnn: report " + absolute(options.report);
  if (outcome.held_out && !options.png.empty()) {
    text += "\nmesh_gnn: picture " + absolute(options.png);
  }
  return text;
}

void write_report(const Outcome& outcome, const Options& options) {
  using nlohmann::ordered_json;
  const auto& errors = outcome.held_out;
  const auto known = [&](double Errors::*member) {
    return errors ? ordered_json(*errors.*member) : ordered_json();
  };
  const ordered_json report = {
      {"job", "mesh_gnn"},
      {"rmse_arcsec", known(&Errors::rmse)},
      {"rmse_of_planes_arcsec", known(&Errors::rmse_of_planes)},
      {"slope_rms_arcsec", known(&Errors::slope)},
      {"held_out_nodes", errors ? ordered_json(errors->nodes) : ordered_json()},
      {"steps", outcome.training.steps},
      {"first_step", outcome.training.first_step},
      {"train_seconds", outcome.training.seconds},
      {"steps_per_second", outcome.training.steps_per_second},
      {"world_size", outcome.world_size},
      {"backend", outcome.backend},
      {"level", options.level},
      {"nodes", outcome.nodes},
      {"edges", outcome.edges},
      {"edge_degrees", outcome.edge_degrees},
      {"partition", options.partition},
      {"nodes_of_ranks", outcome.own_nodes},
      {"halo_nodes_of_ranks", outcome.halo_nodes},
      {"smoothing_edges", options.smoothing},
      {"seed", options.seed},
      {"learning_rate", options.learning_rate},
      {"hidden", options.hidden},
      {"blocks", options.blocks},
      {"parameters", outcome.parameters},
      {"held_out", options.held_out},
      {"data", absolute(options.data)},
      {"png", absolute(options.png)},
      {"checkpoint_dir", absolute(options.checkpoint_dir)}};
  write_file_atomically(options.report, report.dump(2) + "\n");
}

void write_picture(const SlopeMaps& maps, const Outcome& outcome, const Options& options) {
  const std::string title =
      format("Slope of the geoid, arc seconds: RMSE %.2f", outcome.held_out->rmse);
  std::vector<std::vector<float>> errors(maps.truth.size());
  std::vector<std::vector<jobs::FieldPanel>> rows;
  const char* const names[] = {"east", "north"};
  for (size_t c = 0; c < maps.truth.size(); ++c) {
    errors[c].resize(maps.truth[c].size());
    std::transform(maps.predicted[c].begin(), maps.predicted[c].end(), maps.truth[c].begin(),
                   errors[c].begin(), std::minus());
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
