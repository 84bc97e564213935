// Adaptive Fourier neural operator (Guibas et al. 2021, arXiv:2111.13587): mixes patches of a
// two-dimensional field in Fourier space.
//
//   AFNO model(AFNOOptions({720, 1440}, 20, 20).patch_size({8, 8}).embed_dim(768).depth(12));
//   at::Tensor y = model(x);  // [B, 20, 720, 1440] -> [B, 20, 720, 1440]
//
// Parameters are named, shaped and initialised as those of PhysicsNeMo's
// physicsnemo.models.afno.AFNO, so a state dictionary written by one is read by the other.
// DistributedAFNO (distributed_afno.h) is the same model with its channels split over ranks.
//
// Dtypes: that of the parameters; float16 and bfloat16 are transformed in float32, and so is all
// that stands between the transforms, under autocast too. Differentiable to any order. On the
// device of the parameters.
//
// Threads: one at a time per module. Errors: c10::ValueError for options and inputs that do not
// fit, with both sides' values.
#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/nn/afno_network.h"

namespace meshrun {

struct AFNOOptions {
  AFNOOptions(std::vector<int64_t> inp_shape, IntArgument in_channels, IntArgument out_channels)
      : inp_shape_(std::move(inp_shape)), in_channels_(in_channels), out_channels_(out_channels) {}

  // Height and width; a multiple of patch_size.
  TORCH_ARG(std::vector<int64_t>, inp_shape);
  TORCH_ARG(IntArgument, in_channels);
  TORCH_ARG(IntArgument, out_channels);
  TORCH_ARG(std::vector<int64_t>, patch_size) = {16, 16};
  TORCH_ARG(IntArgument, embed_dim) = 256;
  TORCH_ARG(IntArgument, depth) = 4;
  // Hidden features of a block's perceptron, as a multiple of embed_dim.
  TORCH_ARG(double, mlp_ratio) = 4.0;
  TORCH_ARG(double, drop_rate) = 0.0;
  // Number of blocks of the block-diagonal product in Fourier space; divides embed_dim.
  TORCH_ARG(IntArgument, num_blocks) = 16;
  // Threshold of softshrink, which acts on the modes' real and imaginary parts.
  TORCH_ARG(double, sparsity_threshold) = 0.01;
  // Fraction of the modes that is kept, 0 to 1. As in PhysicsNeMo, 1 keeps height / 2 + 1 columns
  // of modes, even if the field is wider than high; a smaller fraction keeps the rows of high wave
  // numbers.
  TORCH_ARG(double, hard_thresholding_fraction) = 1.0;
};

// [B, in_channels, H, W] -> [B, out_channels, H, W].
class AFNOImpl : public detail::AfnoNetwork {
 public:
  explicit AFNOImpl(const AFNOOptions& options);

  const AFNOOptions& options() const { return options_; }

 private:
  const AFNOOptions options_;
};
TORCH_MODULE(AFNO);

}  // namespace meshrun
