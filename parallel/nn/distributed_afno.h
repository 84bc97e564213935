// AFNO with its channels and weights split over the ranks of a group; see afno.h.
//
//   // MODEL_PARALLEL_SIZE=4 in the environment: initialize() makes the group "model_parallel".
//   DistributedManager::initialize();
//   DistributedAFNO model(DistributedAFNOOptions({720, 1440}, 20));
//   at::Tensor y = model(x);  // [B, 20, 720, 1440] on every rank
//
// It equals AFNO: ranks hold pieces of the parameters that AFNO would have with the seed of the
// group's rank 0 (torch::manual_seed), whatever their number; outputs and gradients are those of
// AFNO, up to rounding. Parameters have AFNO's names; sharded_parameters.h says how each is cut.
//
// Data: all ranks get the same samples; with channel_parallel_inputs each gets its piece of their
// channels. Backward: a whole output has the same loss on all ranks. With channel_parallel_outputs
// the loss is the sum of the ranks' losses of their channels. It runs on all ranks or on none.
//
// With a `spatial_group`, such as "spatial_parallel", the field is split along its width as well: a
// rank has whole columns of patches, compute_split_shapes(width / patch width) many, of the input
// and of the output; the loss is the sum of the ranks' losses of their columns. Each rank of that
// group has the same pieces of the parameters; each forward call with gradients marks those
// trainable parameters as shared over it (shared_module.h) that are not yet, so that their
// gradients are sums. All ranks freeze and unfreeze alike.
//
//   manager.initialize_mesh({2, 2}, {"spatial_parallel", "model_parallel"});
//   DistributedAFNO model(DistributedAFNOOptions({64, 64}, 3).spatial_group("spatial_parallel"));
//
// What is sent, per block and pass: afno_network.h.
//
// Threads: one at a time per module; all ranks call in the same order. Errors: UndefinedGroupError,
// if the group was never made. c10::ValueError on all ranks of the groups: sizes that do not
// divide, options that differ between ranks, inputs of another shape, dtype or device. Those of
// collectives (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.models.afno.distributed, whose LayerNorm is over positions and not
// over channels, and whose channel_parallel_ arguments are ignored.
#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/afno_network.h"

namespace meshrun {

struct DistributedAFNONetOptions {
  TORCH_ARG(std::vector<int64_t>, inp_shape) = {720, 1440};
  TORCH_ARG(std::vector<int64_t>, patch_size) = {16, 16};
  TORCH_ARG(IntArgument, in_chans) = 2;
  TORCH_ARG(IntArgument, out_chans) = 2;
  TORCH_ARG(IntArgument, embed_dim) = 768;
  TORCH_ARG(IntArgument, depth) = 12;
  TORCH_ARG(double, mlp_ratio) = 4.0;
  // Ranks seeded alike drop what AFNO drops.
  TORCH_ARG(double, drop_rate) = 0.0;
  // Rate of the last block; the first block has 0, and the rates between are spaced evenly.
  TORCH_ARG(double, drop_path_rate) = 0.0;
  // The number of ranks divides it; divides embed_dim.
  TORCH_ARG(IntArgument, num_blocks) = 16;
  TORCH_ARG(double, sparsity_threshold) = 0.01;
  TORCH_ARG(double, hard_thresholding_fraction) = 1.0;
  // Channels of the input are split; the number of ranks divides in_chans.
  TORCH_ARG(BoolArgument, input_is_matmul_parallel) = false;
  // Channels of the output are split, as compute_split_shapes says.
  TORCH_ARG(BoolArgument, output_is_matmul_parallel) = false;
  TORCH_ARG(GroupArgument, group) = "model_parallel";
  // Splits the field's columns; absent: each rank has all of them.
  TORCH_ARG(std::optional<GroupArgument>, spatial_group) = std::nullopt;
};

class DistributedAFNONetImpl : public detail::AfnoNetwork {
 public:
  explicit DistributedAFNONetImpl(const DistributedAFNONetOptions& options = {});

 protected:
  DistributedAFNONetImpl(std::string name, const detail::AfnoShape& shape,
                         const detail::AfnoGroups& groups, const std::string& problem)
      : AfnoNetwork(std::move(name), shape, groups, problem) {}
};
TORCH_MODULE(DistributedAFNONet);

struct DistributedAFNOOptions {
  DistributedAFNOOptions(std::vector<int64_t> inp_shape, IntArgument in_channels)
      : inp_shape_(std::move(inp_shape)), in_channels_(in_channels) {}

  // Height and width; a multiple of patch_size.
  TORCH_ARG(std::vector<int64_t>, inp_shape);
  TORCH_ARG(IntArgument, in_channels);
  // 0: in_channels.
  TORCH_ARG(IntArgument, out_channels) = 0;
  // Along both dimensions.
  TORCH_ARG(IntArgument, patch_size) = 16;
  TORCH_ARG(IntArgument, embed_dim) = 256;
  TORCH_ARG(IntArgument, depth) = 4;
  // The number of ranks divides it; divides embed_dim.
  TORCH_ARG(IntArgument, num_blocks) = 4;
  // This rank's piece of the input's channels; the number of ranks divides in_channels.
  TORCH_ARG(BoolArgument, channel_parallel_inputs) = false;
  // This rank's piece of the output's channels, as compute_split_shapes says.
  TORCH_ARG(BoolArgument, channel_parallel_outputs) = false;
  TORCH_ARG(GroupArgument, group) = "model_parallel";
  // Splits the field's columns; absent: each rank has all of them.
  TORCH_ARG(std::optional<GroupArgument>, spatial_group) = std::nullopt;
};

class DistributedAFNOImpl : public DistributedAFNONetImpl {
 public:
  explicit DistributedAFNOImpl(const DistributedAFNOOptions& options);

  const DistributedAFNOOptions& options() const { return options_; }

 private:
  const DistributedAFNOOptions options_;
};
TORCH_MODULE(DistributedAFNO);

}  // namespace meshrun
