#include "parallel/nn/afno.h"

namespace meshrun {
namespace {

detail::AfnoShape shape_of(const AFNOOptions& options) {
  return {.inp_shape = options.inp_shape(),
          .patch_size = options.patch_size(),
          .in_chans = options.in_channels(),
          .out_chans = options.out_channels(),
          .embed_dim = options.embed_dim(),
          .depth = options.depth(),
          .mlp_ratio = options.mlp_ratio(),
          .drop_rate = options.drop_rate(),
          .num_blocks = options.num_blocks(),
          .sparsity_threshold = options.sparsity_threshold(),
          .hard_thresholding_fraction = options.hard_thresholding_fraction()};
}

}  // namespace

AFNOImpl::AFNOImpl(const AFNOOptions& options)
    : AfnoNetwork("AFNO", shape_of(options), {}), options_(options) {}

}  // namespace meshrun
