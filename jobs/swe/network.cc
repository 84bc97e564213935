#include "jobs/swe/network.h"

namespace meshrun::swe {

SweNetworkImpl::SweNetworkImpl(const Options& options, const Trajectories& trajectories,
                               const jobs::RankMesh& mesh, c10::Device device)
    : scales_(trajectories.scales.to(device)),
      change_scales_(trajectories.change_scales.to(device)),
      columns_(compute_split_shapes(options.size, mesh.spatial->getSize())) {
  operator_ = register_module("operator", FNO(FNOOptions()
                                                  .in_channels(3)
                                                  .out_channels(3)
                                                  .width(options.width)
                                                  .modes({options.modes, options.modes})
                                                  .num_layers(options.layers)
                                                  .coordinates(false)
                                                  .group(GroupArgument(mesh.spatial))));
  to(device);
}

at::Tensor SweNetworkImpl::forward(const at::Tensor& state) {
  return state + change_scales_ * operator_(state / scales_, columns_);
}

}  // namespace meshrun::swe
