// A U-Net that maps fields to fields (Ronneberger et al. 2015, arXiv:1505.04597): a path down to
// coarse grids and up again, with the fine grids' features kept for the way up.
//
//   UNet model(UNetOptions(1, 1).base_channels(16).depth(3));
//   at::Tensor y = model(x);  // [B, 1, H, W] -> [B, 1, H, W]; 2^depth divides H and W
//
// A stage is two times convolution 3 x 3, group norm, silu. Down: a stage, then max-pooling by 2,
// while the channels double. Up: a transposed convolution by 2, what the same level had on the way
// down, and a stage. The last convolution is 1 x 1.
//
// On ShardTensors (parallel/shard) that hold pieces of rows or columns each rank has its piece of
// every level; convolutions exchange halos. Nothing in the model knows of it: see
// distribute_module.h.
//
// Dtypes: that of the parameters. Backward: LibTorch's. Threads: one at a time per module. Errors:
// c10::ValueError for options and inputs that do not fit, with both sides' values.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "parallel/base/arguments.h"

namespace meshrun {

struct UNetOptions {
  UNetOptions(IntArgument in_channels, IntArgument out_channels)
      : in_channels_(in_channels), out_channels_(out_channels) {}

  TORCH_ARG(IntArgument, in_channels);
  TORCH_ARG(IntArgument, out_channels);
  // Channels of the finest level.
  TORCH_ARG(IntArgument, base_channels) = 16;
  // How many times the grid is halved.
  TORCH_ARG(IntArgument, depth) = 3;
  // Number of groups in each group norm; divides base_channels.
  TORCH_ARG(IntArgument, num_groups) = 4;
  // What a stage computes within is computed again in the backward pass (activation_checkpoint.h).
  TORCH_ARG(BoolArgument, checkpoint_stages) = false;
};

// [B, in, H, W] -> [B, out, H, W].
class UNetStageImpl : public torch::nn::Module {
 public:
  UNetStageImpl(IntArgument in_channels, IntArgument out_channels, IntArgument num_groups);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d convolution1_ = nullptr;
  torch::nn::GroupNorm norm1_ = nullptr;
  torch::nn::Conv2d convolution2_ = nullptr;
  torch::nn::GroupNorm norm2_ = nullptr;
};
TORCH_MODULE(UNetStage);

class UNetImpl : public torch::nn::Module {
 public:
  explicit UNetImpl(const UNetOptions& options);
  at::Tensor forward(const at::Tensor& x);
  const UNetOptions& options() const { return options_; }

 private:
  at::Tensor stage(torch::nn::Module& module, const at::Tensor& x) const;

  const UNetOptions options_;
  torch::nn::ModuleList down_ = nullptr;   // stages of levels 0 to depth; the last is the coarsest
  torch::nn::ModuleList widen_ = nullptr;  // transposed convolutions, from level i + 1 to i
  torch::nn::ModuleList up_ = nullptr;     // stages of levels 0 to depth - 1
  torch::nn::Conv2d output_ = nullptr;
};
TORCH_MODULE(UNet);

}  // namespace meshrun
