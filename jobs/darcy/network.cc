#include "jobs/darcy/network.h"

namespace meshrun::darcy {
namespace {

using at::Tensor;

// Centres of cells [range.begin, range.end) out of `cells` cells on [0, 1].
Tensor centres(const SplitRange& range, int64_t cells) {
  return (at::arange(range.begin, range.end, at::kFloat) + 0.5) / static_cast<double>(cells);
}

}  // namespace

DarcyNetworkImpl::DarcyNetworkImpl(const Options& options, const Samples& samples,
                                   const jobs::RankMesh& mesh, c10::Device device)
    : log_mean_(samples.log_permeability_mean), log_deviation_(samples.log_permeability_deviation) {
  const auto [all, rows, columns] = samples.shape;
  const std::vector<Tensor> grid =
      at::meshgrid({centres({0, rows}, rows), centres(mesh.columns(columns), columns)}, "ij");
  boundary_ =
      (16 * samples.pressure_root_mean_square * grid[0] * (1 - grid[0]) * grid[1] * (1 - grid[1]))
          .to(device);
  columns_ = compute_split_shapes(columns, mesh.spatial->getSize());
  operator_ = register_module("operator", FNO(FNOOptions()
                                                  .in_channels(1)
                                                  .out_channels(1)
                                                  .width(options.width)
                                                  .modes({options.modes, options.modes})
                                                  .num_layers(options.layers)
                                                  .padding(options.padding)
                                                  .group(GroupArgument(mesh.spatial))));
  to(device);
}

Tensor DarcyNetworkImpl::forward(const Tensor& permeability) {
  const Tensor medium = ((permeability.log() - log_mean_) / log_deviation_).unsqueeze(1);
  return boundary_ * operator_(medium, columns_).squeeze(1);
}

}  // namespace meshrun::darcy
