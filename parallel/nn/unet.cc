#include "parallel/nn/unet.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <vector>

#include "parallel/nn/activation_checkpoint.h"

namespace meshrun {
namespace {

using at::Tensor;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::ConvTranspose2d;
using torch::nn::GroupNorm;
using torch::nn::GroupNormOptions;
using torch::nn::ModuleList;

void check(const UNetOptions& options) {
  const int64_t depth = options.depth();
  constexpr int64_t kDeepest = 30;
  TORCH_CHECK_VALUE(depth >= 0 && depth <= kDeepest, "UNet: depth is ", depth, ", not in [0, ",
                    kDeepest, "]");
  const int64_t channels = options.base_channels();
  const int64_t groups = options.num_groups();
  TORCH_CHECK_VALUE(channels > 0 && groups > 0 && channels % groups == 0, "UNet: num_groups ",
                    groups, " does not divide base_channels ", channels);
}

}  // namespace

UNetStageImpl::UNetStageImpl(IntArgument in_channels, IntArgument out_channels,
                             IntArgument num_groups) {
  const auto convolution = [&](int64_t in) {
    return Conv2d(Conv2dOptions(in, out_channels, 3).padding(1));
  };
  const auto norm = [&] { return GroupNorm(GroupNormOptions(num_groups, out_channels)); };
  convolution1_ = register_module("convolution1", convolution(in_channels));
  norm1_ = register_module("norm1", norm());
  convolution2_ = register_module("convolution2", convolution(out_channels));
  norm2_ = register_module("norm2", norm());
}

Tensor UNetStageImpl::forward(const Tensor& x) {
  const Tensor h = at::silu(norm1_(convolution1_(x)));
  return at::silu(norm2_(convolution2_(h)));
}

UNetImpl::UNetImpl(const UNetOptions& options) : options_(options) {
  check(options);
  const int64_t depth = options.depth();
  const int64_t groups = options.num_groups();
  const auto channels = [&](int64_t level) { return options.base_channels() << level; };
  down_ = register_module("down", ModuleList());
  widen_ = register_module("widen", ModuleList());
  up_ = register_module("up", ModuleList());
  for (int64_t level = 0; level <= depth; ++level) {
    const int64_t in = level == 0 ? int64_t{options.in_channels()} : channels(level - 1);
    down_->push_back(UNetStage(in, channels(level), groups));
  }
  for (int64_t level = 0; level < depth; ++level) {
    widen_->push_back(ConvTranspose2d(
        torch::nn::ConvTranspose2dOptions(channels(level + 1), channels(level), 2).stride(2)));
    up_->push_back(UNetStage(2 * channels(level), channels(level), groups));
  }
  output_ =
      register_module("output", Conv2d(Conv2dOptions(channels(0), options.out_channels(), 1)));
}

Tensor UNetImpl::stage(torch::nn::Module& module, const Tensor& x) const {
  auto* stage = module.as<UNetStage>();
  if (!options_.checkpoint_stages()) return stage->forward(x);
  return checkpoint([stage](const Tensor& input) { return stage->forward(input); }, x);
}

Tensor UNetImpl::forward(const Tensor& x) {
  const int64_t in_channels = options_.in_channels();
  const int64_t depth = options_.depth();
  const int64_t unit = int64_t{1} << depth;
  TORCH_CHECK_VALUE(
      x.dim() == 4 && x.size(1) == in_channels && x.size(2) % unit == 0 && x.size(3) % unit == 0,
      "UNet: the input's shape is ", x.sizes(), ", not [B, ", in_channels,
      ", H, W] with multiples of ", unit, " for H and W");
  std::vector<Tensor> kept;
  Tensor v = stage(*down_[0], x);
  for (int64_t level = 1; level <= depth; ++level) {
    kept.push_back(v);
    v = stage(*down_[static_cast<size_t>(level)], at::max_pool2d(v, {2, 2}));
  }
  for (int64_t level = depth - 1; level >= 0; --level) {
    const auto at = static_cast<size_t>(level);
    v = widen_[at]->as<ConvTranspose2d>()->forward(v);
    v = stage(*up_[at], at::cat({kept.back(), v}, 1));
    kept.pop_back();
  }
  return output_(v);
}

}  // namespace meshrun
