// The layers of DistributedAFNO: channels and weights are split over the ranks of a group,
// "model_parallel" unless told otherwise, and each layer equals the unsharded one.
//
//   DistributedMLP mlp(DistributedMLPOptions(256).hidden_features(1024));
//   at::Tensor y = mlp(x);  // [B, 256, H, W] -> [B, 256, H, W]
//
// Tensors are [B, C, H, W], with all channels on every rank, or, where input_ or
// output_is_matmul_parallel, with the rank's piece of compute_split_shapes. Any memory format;
// channels-last is not copied. Dtype: that of the parameters.
//
// Parameters have the names and shapes of the unsharded layer (PhysicsNeMo's serial AFNO), cut
// along one dimension (sharded_parameters.h); ranks that are seeded alike start from one model.
// Those that are not cut have equal gradients on all ranks.
//
// Backward: a whole output has the same cotangent on all ranks, a whole input gets the same
// gradient on all; the loss of split outputs is the sum of the ranks' losses. It runs on all ranks
// or on none.
//
// Threads: one at a time per module; all ranks call in the same order. Errors: UndefinedGroupError,
// where the group was never made; c10::ValueError for options that do not fit, on each rank, and
// for inputs that do not fit, on all ranks of the group.
//
// Corresponds to physicsnemo.models.afno.distributed.layers.
#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/afno_functions.h"
#include "parallel/nn/afno_plan.h"
#include "parallel/nn/channel_group.h"
#include "parallel/nn/fully_connected.h"
#include "parallel/nn/sharded_module.h"

namespace meshrun {

namespace detail {

// The handle, or UndefinedGroupError with PhysicsNeMo's sentence.
GroupArgument::Handle model_parallel_group(const GroupArgument& group);

// A layer's weight and bias; it computes nothing.
class WeightsImpl : public ShardedModule {
 public:
  using ShardedModule::ShardedModule;
  // Cut along `dim`; -1: not cut.
  void set_weight(const at::Tensor& whole, int64_t dim);
  void set_bias(const at::Tensor& whole, int64_t dim);

  at::Tensor weight, bias;
};
TORCH_MODULE(Weights);

// A field's columns on this rank, and the transforms over the group that splits them: from columns
// to rows of modes, and back. Without a group: all columns, and no transforms.
struct FieldColumns {
  ChannelGroup group;
  PieceOf piece;
  std::shared_ptr<DistributedRFFT2> to_modes;
  std::shared_ptr<DistributedIRFFT2> from_modes;
  // Whether a transform has raised, which it does on all ranks of the group.
  mutable bool has_raised = false;
};

}  // namespace detail

struct DistributedMLPOptions {
  DistributedMLPOptions(IntArgument in_features)  // NOLINT(google-explicit-constructor)
      : in_features_(in_features) {}
  TORCH_ARG(IntArgument, in_features);
  // 0: in_features. The number of ranks divides it.
  TORCH_ARG(IntArgument, hidden_features) = 0;
  // 0: in_features.
  TORCH_ARG(IntArgument, out_features) = 0;
  // A name that get_activation() knows.
  TORCH_ARG(std::string, act_layer) = "gelu";
  TORCH_ARG(double, drop) = 0.0;
  TORCH_ARG(BoolArgument, input_is_matmul_parallel) = false;
  TORCH_ARG(BoolArgument, output_is_matmul_parallel) = false;
  TORCH_ARG(GroupArgument, group) = "model_parallel";
};

// Two 1x1 convolutions with an activation between: each rank has a slice of the hidden features.
// Parameters fc1.weight, fc1.bias, fc2.weight, fc2.bias.
class DistributedMLPImpl : public torch::nn::Module {
 public:
  explicit DistributedMLPImpl(const DistributedMLPOptions& options);
  // The same with a group that may be null: the whole layer.
  DistributedMLPImpl(const DistributedMLPOptions& options, GroupArgument::Handle group);

  at::Tensor forward(const at::Tensor& x);
  // [B, H, W, C].
  at::Tensor forward_channels_last(const at::Tensor& x, const detail::PieceOf& columns);

 private:
  const DistributedMLPOptions options_;
  const detail::ChannelGroup channels_;
  const Activation activation_;
  int64_t hidden_features_, out_features_;
  detail::Weights fc1_ = nullptr, fc2_ = nullptr;
};
TORCH_MODULE(DistributedMLP);

struct DistributedPatchEmbedOptions {
  TORCH_ARG(std::vector<int64_t>, inp_shape) = {224, 224};
  TORCH_ARG(std::vector<int64_t>, patch_size) = {16, 16};
  TORCH_ARG(IntArgument, in_chans) = 3;
  TORCH_ARG(IntArgument, embed_dim) = 768;
  // The number of ranks divides in_chans.
  TORCH_ARG(BoolArgument, input_is_matmul_parallel) = false;
  // The number of ranks divides embed_dim.
  TORCH_ARG(BoolArgument, output_is_matmul_parallel) = true;
  TORCH_ARG(GroupArgument, group) = "model_parallel";
};

// [B, in_chans, H, W] -> [B, embed_dim, patches], row by row. Parameters proj.weight, proj.bias.
class DistributedPatchEmbedImpl : public torch::nn::Module {
 public:
  explicit DistributedPatchEmbedImpl(const DistributedPatchEmbedOptions& options = {});
  DistributedPatchEmbedImpl(const DistributedPatchEmbedOptions& options,
                            GroupArgument::Handle group);

  at::Tensor forward(const at::Tensor& x);
  // [B, in_chans, H, its columns] -> [B, h, w, embed_dim].
  at::Tensor forward_channels_last(const at::Tensor& x);

 private:
  const DistributedPatchEmbedOptions options_;
  const detail::ChannelGroup channels_;
  detail::Weights proj_ = nullptr;
};
TORCH_MODULE(DistributedPatchEmbed);

struct DistributedAFNO2DOptions {
  DistributedAFNO2DOptions(IntArgument hidden_size)  // NOLINT(google-explicit-constructor)
      : hidden_size_(hidden_size) {}
  TORCH_ARG(IntArgument, hidden_size);
  // Divides hidden_size; the number of ranks divides it.
  TORCH_ARG(IntArgument, num_blocks) = 8;
  TORCH_ARG(double, sparsity_threshold) = 0.01;
  // 0 to 1.
  TORCH_ARG(double, hard_thresholding_fraction) = 1.0;
  TORCH_ARG(IntArgument, hidden_size_factor) = 1;
  TORCH_ARG(BoolArgument, input_is_matmul_parallel) = false;
  TORCH_ARG(BoolArgument, output_is_matmul_parallel) = false;
  TORCH_ARG(GroupArgument, group) = "model_parallel";
};

// x + irfft2(softshrink(W2 relu(W1 rfft2(x) + b1) + b2)), block-diagonal in the channels, so ranks
// need nothing of each other's. float16 and bfloat16 are transformed and multiplied in float32,
// under autocast too; the result has the input's dtype. Parameters w1, b1, w2, b2.
class DistributedAFNO2DImpl : public ShardedModule {
 public:
  explicit DistributedAFNO2DImpl(const DistributedAFNO2DOptions& options);
  DistributedAFNO2DImpl(const DistributedAFNO2DOptions& options, GroupArgument::Handle group);

  at::Tensor forward(const at::Tensor& x);
  // [B, H, W, C].
  at::Tensor forward_channels_last(const at::Tensor& x, const detail::FieldColumns& columns);

 private:
  const DistributedAFNO2DOptions options_;
  const detail::ChannelGroup channels_;
  at::Tensor w1_, b1_, w2_, b2_;
};
TORCH_MODULE(DistributedAFNO2D);

}  // namespace meshrun
