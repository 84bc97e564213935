// The Fourier neural operator, on a field that the ranks of a group hold in pieces.
//
//   FNO network(FNOOptions().in_channels(1).out_channels(1).width(32).modes({12, 12})
//                   .group(GroupArgument("spatial")));
//   at::Tensor pressure = network(permeability);   // this rank's columns in, the same columns out
//
// y = projection(layers(lifting(x, coordinates))); a layer is
// activation(spectral_convolution(v) + bypass(v)), without the activation in the last one. The
// spectral convolution multiplies the lowest Fourier modes by learnt complex matrices over the
// channels; everything else acts on each point alone.
//
// Shapes: 2-D, two modes: x is [batch, in_channels, H, W], of which this rank has all rows and its
// piece of W. 3-D, three modes: [batch, in_channels, D, H, W], of which it has its piece of H.
// Pieces may be uneven or empty; other extents are equal on all ranks. The result has out_channels.
// The modes of the 2-D operator are the wave numbers 0 .. m0 - 1 along H and -m1 .. m1 - 1 along W;
// of the 3-D one -m .. m - 1 along D and H, 0 .. m2 - 1 along W (fft/distributed_fft.h,
// fft/distributed_fftn.h).
//
// Dtypes: that of the parameters, or autocast's; float16 and bfloat16 are transformed, and their
// modes multiplied, in float32.
//
// Without a group the network is the unsharded one. With a group every rank draws the same initial
// parameters from LibTorch's generator, which all ranks seed alike: so a network starts equal on
// any number of ranks. A rank keeps its rows of the spectral weights (sharded_parameters.h), which
// need no reduction; the gradients of all other parameters are summed over the group when a
// backward pass ends (shared_module.h). Construction, forward and backward are collective. The
// ranks' losses add up: a rank's loss is of its own columns.
//
// Threads: one at a time per module. Errors: c10::ValueError for options that do not fit; from
// forward(), on every rank, c10::ValueError for an input that does not fit, and those of the
// transforms.
//
// Source: Li et al., Fourier Neural Operator for Parametric Partial Differential Equations, 2021.
// Corresponds to physicsnemo.models.fno.FNO, which has no spatial parallelism.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/base/arguments.h"
#include "parallel/base/list_argument.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/channel_group.h"
#include "parallel/nn/fully_connected.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun {

struct FNOOptions {
  TORCH_ARG(IntArgument, in_channels) = 1;
  TORCH_ARG(IntArgument, out_channels) = 1;
  // Channels between lifting and projection.
  TORCH_ARG(IntArgument, width) = 32;
  TORCH_ARG(IntArgument, num_layers) = 4;
  // Two for fields on a plane, three in space.
  TORCH_ARG(ListArgument<IntArgument>, modes) = {16, 16};
  TORCH_ARG(IntArgument, projection_channels) = 128;
  // Zeros appended to each dimension before the layers, and cut off behind them: for fields that
  // are not periodic.
  TORCH_ARG(IntArgument, padding) = 0;
  // The position of each point, in [0, 1] along each dimension, as further channels.
  TORCH_ARG(BoolArgument, coordinates) = true;
  // A name of get_activation() (fully_connected.h).
  TORCH_ARG(std::string, activation_fn) = "gelu";
  // Group of the ranks that hold pieces of a field.
  TORCH_ARG(std::optional<GroupArgument>, group) = std::nullopt;
};

// How a dimension lies on the ranks of a group.
struct SplitExtent {
  std::vector<int64_t> sizes;  // by rank; one without a group
  int64_t total = 0;
  int64_t offset = 0;  // of this rank's piece
};

// A linear map of the channels, the same at every point: [N, in, ...] -> [N, out, ...].
class PointwiseImpl : public torch::nn::Module {
 public:
  PointwiseImpl(IntArgument in_channels, IntArgument out_channels);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;  // [out, in]
  at::Tensor bias_;    // [out]
};
TORCH_MODULE(Pointwise);

// Multiplies the lowest modes by complex matrices. The parameter "weight" holds real and imaginary
// parts: [in, out, m0, 2 m1, 2] or [in, out, 2 m0, 2 m1, m2, 2], sharded along its third dimension.
class SpectralConvolutionImpl : public torch::nn::Module, public ShardedParameters {
 public:
  SpectralConvolutionImpl(IntArgument in_channels, IntArgument out_channels,
                          const ListArgument<IntArgument>& modes,
                          const std::optional<GroupArgument>& group);

  // `split`: of W (2-D) or H (3-D).
  at::Tensor forward(const at::Tensor& input, const SplitExtent& split);
  std::map<std::string, ParameterShard> own_parameter_shards() const override;

 private:
  at::Tensor low_modes(const at::Tensor& x, const SplitExtent& split) const;
  at::Tensor field(const at::Tensor& modes, const SplitExtent& split,
                   at::IntArrayRef extents) const;

  std::vector<int64_t> modes_;
  std::optional<GroupArgument> group_;
  std::vector<int64_t> global_shape_;
  at::Tensor weight_;
};
TORCH_MODULE(SpectralConvolution);

class FNOImpl : public torch::nn::Module {
 public:
  explicit FNOImpl(const FNOOptions& options = {});

  // `sizes`: by rank, the pieces of the split dimension; empty: the ranks ask each other, which
  // costs a message.
  at::Tensor forward(const at::Tensor& x, const std::vector<int64_t>& sizes = {});
  const FNOOptions& options() const { return options_; }

 private:
  int64_t split_dim() const;
  std::string problem_of_input(const at::Tensor& x, const std::vector<int64_t>& sizes) const;
  SplitExtent split_of(const at::Tensor& x, const std::vector<int64_t>& sizes) const;
  at::Tensor coordinates(const at::Tensor& x, const SplitExtent& split) const;
  at::Tensor padded(const at::Tensor& x, const SplitExtent& split, SplitExtent& wider) const;

  FNOOptions options_;
  const detail::ChannelGroup group_;
  Activation activation_;
  Pointwise lifting_ = nullptr;
  torch::nn::ModuleList spectral_ = nullptr;
  torch::nn::ModuleList bypass_ = nullptr;
  Pointwise projection_ = nullptr;
  Pointwise output_ = nullptr;
};
TORCH_MODULE(FNO);

}  // namespace meshrun
