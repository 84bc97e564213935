#include "parallel/nn/distributed_afno.h"

#include "fmt/format.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

detail::AfnoShape shape_of(const DistributedAFNONetOptions& options) {
  return {.inp_shape = options.inp_shape(),
          .patch_size = options.patch_size(),
          .in_chans = options.in_chans(),
          .out_chans = options.out_chans(),
          .embed_dim = options.embed_dim(),
          .depth = options.depth(),
          .mlp_ratio = options.mlp_ratio(),
          .drop_rate = options.drop_rate(),
          .drop_path_rate = options.drop_path_rate(),
          .num_blocks = options.num_blocks(),
          .sparsity_threshold = options.sparsity_threshold(),
          .hard_thresholding_fraction = options.hard_thresholding_fraction(),
          .input_is_parallel = options.input_is_matmul_parallel(),
          .output_is_parallel = options.output_is_matmul_parallel()};
}

detail::AfnoShape shape_of(const DistributedAFNOOptions& options) {
  const int64_t in_channels = options.in_channels(), out_channels = options.out_channels();
  return {.inp_shape = options.inp_shape(),
          .patch_size = {options.patch_size(), options.patch_size()},
          .in_chans = in_channels,
          .out_chans = out_channels != 0 ? out_channels : in_channels,
          .embed_dim = options.embed_dim(),
          .depth = options.depth(),
          .num_blocks = options.num_blocks(),
          .input_is_parallel = options.channel_parallel_inputs(),
          .output_is_parallel = options.channel_parallel_outputs()};
}

detail::AfnoGroups groups_of(const GroupArgument& group,
                             const std::optional<GroupArgument>& spatial_group) {
  detail::AfnoGroups groups{.channels = detail::model_parallel_group(group)};
  if (spatial_group) groups.columns = spatial_group->get();
  return groups;
}

std::string problem_of(const DistributedAFNOOptions& options) {
  if (!options.channel_parallel_inputs()) return "";
  const int64_t ranks = detail::model_parallel_group(options.group())->getSize();
  if (options.in_channels() % ranks == 0) return "";
  return fmt::format("Error, in_channels needs to be divisible by model_parallel size: {} and {}",
                     static_cast<int64_t>(options.in_channels()), ranks);
}

}  // namespace

DistributedAFNONetImpl::DistributedAFNONetImpl(const DistributedAFNONetOptions& options)
    : AfnoNetwork("DistributedAFNONet", shape_of(options),
                  groups_of(options.group(), options.spatial_group())) {}

DistributedAFNOImpl::DistributedAFNOImpl(const DistributedAFNOOptions& options)
    : DistributedAFNONetImpl("DistributedAFNO", shape_of(options),
                             groups_of(options.group(), options.spatial_group()),
                             problem_of(options)),
      options_(options) {}

}  // namespace meshrun
