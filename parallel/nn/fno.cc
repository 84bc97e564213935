#include "parallel/nn/fno.h"

#include <torch/nn/init.h>

#include <cmath>
#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>

#include "ATen/OpMathType.h"
#include "parallel/base/extents.h"
#include "parallel/base/split.h"
#include "parallel/collectives/plans/transpose_plan.h"
#include "parallel/fft/distributed_fft.h"
#include "parallel/fft/distributed_fftn.h"
#include "parallel/fft/wave_numbers.h"
#include "parallel/nn/autocast.h"
#include "parallel/nn/shared_module.h"

namespace meshrun {
namespace {

using at::Tensor;
using Sizes = std::vector<int64_t>;
using fft::all_waves;
using fft::low_waves;

Sizes plain(const std::vector<IntArgument>& values) { return {values.begin(), values.end()}; }

template <typename Argument>
std::vector<Argument> arguments(const Sizes& values) {
  return std::vector<Argument>(values.begin(), values.end());
}

void check_options(const FNOOptions& options) {
  TORCH_CHECK_VALUE(options.in_channels() > 0 && options.out_channels() > 0 &&
                        options.width() > 0 && options.num_layers() > 0 &&
                        options.projection_channels() > 0 && options.padding() >= 0,
                    "FNO: channels, width and num_layers must be positive, padding not negative");
  TORCH_CHECK_VALUE(options.modes().size() == 2 || options.modes().size() == 3, "FNO: modes has ",
                    options.modes().size(), " elements; 2 or 3 are needed");
  for (const int64_t modes : plain(options.modes())) {
    TORCH_CHECK_VALUE(modes > 0, "FNO: modes must be positive, got ", modes);
  }
}

}  // namespace

// Pointwise.

PointwiseImpl::PointwiseImpl(IntArgument in_channels, IntArgument out_channels) {
  const double bound = 1 / std::sqrt(static_cast<double>(in_channels));
  weight_ =
      register_parameter("weight", at::empty({out_channels, in_channels}).uniform_(-bound, bound));
  bias_ = register_parameter("bias", at::empty({out_channels}).uniform_(-bound, bound));
}

Tensor PointwiseImpl::forward(const Tensor& x) {
  Sizes shape = x.sizes().vec();
  shape[1] = weight_.size(0);
  return (at::matmul(weight_, x.flatten(2)) + bias_.unsqueeze(1)).view(shape);
}

// SpectralConvolution.

SpectralConvolutionImpl::SpectralConvolutionImpl(IntArgument in_channels, IntArgument out_channels,
                                                 const ListArgument<IntArgument>& modes,
                                                 const std::optional<GroupArgument>& group)
    : modes_(plain(modes)), group_(group) {
  global_shape_ = {in_channels, out_channels};
  if (modes_.size() == 2) {
    global_shape_.insert(global_shape_.end(), {modes_[0], 2 * modes_[1], 2});
  } else {
    global_shape_.insert(global_shape_.end(), {2 * modes_[0], 2 * modes_[1], modes_[2], 2});
  }
  const double scale = 1 / static_cast<double>(in_channels * out_channels);
  const Tensor whole = at::rand(global_shape_) * scale;
  weight_ = register_parameter(
      "weight", group_ ? shard_of(whole, own_parameter_shards().at("weight")).clone() : whole);
  if (group_) announce_shard(weight_, own_parameter_shards().at("weight"));
}

std::map<std::string, ParameterShard> SpectralConvolutionImpl::own_parameter_shards() const {
  if (!group_) return {};
  ParameterShard shard{global_shape_, 2, {}, group_->get()};
  for (int rank = 0; rank < shard.group->getSize(); ++rank) {
    shard.ranges.push_back(split_range(global_shape_[2], shard.group->getSize(), rank));
  }
  return {{"weight", std::move(shard)}};
}

Tensor SpectralConvolutionImpl::low_modes(const Tensor& x, const SplitExtent& split) const {
  if (!group_) {
    if (modes_.size() == 2) {
      const Tensor half = at::fft_rfft2(x, std::nullopt, Sizes{-1, -2}, "ortho");
      return low_waves(half.narrow(-2, 0, modes_[0]), half.dim() - 1, modes_[1]);
    }
    const Tensor half =
        at::fft_rfftn(x, std::nullopt, Sizes{-3, -2, -1}, "ortho").narrow(-1, 0, modes_[2]);
    return low_waves(low_waves(half, half.dim() - 3, modes_[0]), half.dim() - 2, modes_[1]);
  }
  FftOptions options{.group = *group_, .modes = arguments<IntArgument>(modes_)};
  options.input_sizes = split.sizes;
  if (modes_.size() == 2) {
    options.layout = FftLayout::kPaired;
    return distributed_rfft2(x, options);
  }
  options.dim = {-3, -2, -1};
  return distributed_rfftn(x, options);
}

Tensor SpectralConvolutionImpl::field(const Tensor& modes, const SplitExtent& split,
                                      at::IntArrayRef extents) const {
  const Sizes s = extents.vec();
  if (!group_) {
    if (modes_.size() == 2) {
      const Tensor columns = all_waves(modes, modes.dim() - 1, s[1]);
      return at::fft_irfft2(columns, Sizes{s[1], s[0]}, Sizes{-1, -2}, "ortho");
    }
    const Tensor rows = all_waves(modes, modes.dim() - 2, s[1]);
    return at::fft_irfftn(all_waves(rows, modes.dim() - 3, s[0]), s, Sizes{-3, -2, -1}, "ortho");
  }
  FftOptions options{.s = arguments<std::optional<IntArgument>>(s),
                     .group = *group_,
                     .modes = arguments<IntArgument>(modes_)};
  const int world = static_cast<int>(split.sizes.size());
  options.input_sizes = compute_split_shapes(global_shape_[2], world);
  options.output_sizes = split.sizes;
  if (modes_.size() == 2) {
    options.layout = FftLayout::kPaired;
    return distributed_irfft2(modes, options);
  }
  options.dim = {-3, -2, -1};
  return distributed_irfftn(modes, options);
}

Tensor SpectralConvolutionImpl::forward(const Tensor& input, const SplitExtent& split) {
  // Nothing of it is in 16 bits, of which there are no complex numbers on every device.
  const AutocastGuard in_float32(input.device().type(), false);
  const Tensor x = input.to(at::toOpMathType(input.scalar_type()));
  Sizes extents = x.sizes().slice(2).vec();
  extents[1] = split.total;
  const Tensor weight = at::view_as_complex(weight_.to(at::toOpMathType(weight_.scalar_type())));
  const Tensor modes = low_modes(x, split);
  const char* const equation = modes_.size() == 2 ? "bixy,ioxy->boxy" : "bixyz,ioxyz->boxyz";
  return field(at::einsum(equation, {modes, weight}), split, extents).to(input.scalar_type());
}

// FNO.

FNOImpl::FNOImpl(const FNOOptions& options)
    : options_(options),
      group_(options.group() ? options.group()->get() : nullptr),
      activation_(get_activation(options.activation_fn())) {
  check_options(options_);
  const auto dimensions = static_cast<int64_t>(options_.modes().size());
  const int64_t inputs = options_.in_channels() + (options_.coordinates() ? dimensions : 0);
  lifting_ = register_module("lifting", Pointwise(inputs, options_.width()));
  spectral_ = register_module("spectral", torch::nn::ModuleList());
  bypass_ = register_module("bypass", torch::nn::ModuleList());
  for (int64_t layer = 0; layer < options_.num_layers(); ++layer) {
    spectral_->push_back(SpectralConvolution(options_.width(), options_.width(), options_.modes(),
                                             options_.group()));
    bypass_->push_back(Pointwise(options_.width(), options_.width()));
  }
  projection_ =
      register_module("projection", Pointwise(options_.width(), options_.projection_channels()));
  output_ =
      register_module("output", Pointwise(options_.projection_channels(), options_.out_channels()));
  if (options_.group()) {
    SharedModuleOptions shared;
    shared.process_group = *options_.group();
    mark_module_as_shared(*this, shared);
  }
}

int64_t FNOImpl::split_dim() const { return 3; }

std::string FNOImpl::problem_of_input(const Tensor& x, const Sizes& sizes) const {
  if (!x.defined()) return "FNO: the input is undefined";
  const auto dims = static_cast<int64_t>(options_.modes().size()) + 2;
  if (x.dim() != dims || x.size(1) != options_.in_channels()) {
    return c10::str("FNO: the input is ", x.sizes(), "; it should have ", dims, " dimensions and ",
                    options_.in_channels(), " channels");
  }
  if (sizes.empty()) return "";
  if (static_cast<int64_t>(sizes.size()) != group_.size() ||
      sizes[static_cast<size_t>(group_.rank())] != x.size(split_dim())) {
    return c10::str("FNO: sizes is ", at::IntArrayRef(sizes), "; ", group_.size(),
                    " pieces are needed, and rank ", group_.rank(), " has ", x.size(split_dim()));
  }
  return "";
}

SplitExtent FNOImpl::split_of(const Tensor& x, const Sizes& sizes) const {
  const int64_t extent = x.size(split_dim());
  if (!options_.group()) return {{extent}, extent, 0};
  // At each call: a rank whose extent is the former one cannot know that another's has changed.
  SplitExtent split{sizes.empty() ? gather_extents(extent, "", *options_.group(), x) : sizes};
  const auto own = split.sizes.begin() + group_.rank();
  split.total = total_extent(split.sizes);
  split.offset = std::accumulate(split.sizes.begin(), own, int64_t{0});
  return split;
}

Tensor FNOImpl::coordinates(const Tensor& x, const SplitExtent& split) const {
  std::vector<Tensor> channels = {x};
  Sizes shape = x.sizes().vec();
  shape[1] = 1;
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const bool is_split = dim == split_dim();
    const int64_t total = is_split ? split.total : x.size(dim);
    const Tensor positions =
        (at::arange(x.size(dim), x.options()) + (is_split ? split.offset : 0)) /
        static_cast<double>(std::max<int64_t>(total - 1, 1));
    Sizes along(static_cast<size_t>(x.dim()), 1);
    along[static_cast<size_t>(dim)] = x.size(dim);
    channels.push_back(positions.view(along).expand(shape));
  }
  return at::cat(channels, 1);
}

Tensor FNOImpl::padded(const Tensor& x, const SplitExtent& split, SplitExtent& wider) const {
  const int64_t padding = options_.padding();
  wider = split;
  wider.total += padding;
  wider.sizes.back() += padding;
  const bool is_last = group_.rank() + 1 == group_.size();
  Sizes amounts;
  for (int64_t dim = x.dim() - 1; dim >= 2; --dim) {
    amounts.push_back(0);
    amounts.push_back(dim != split_dim() || is_last ? padding : 0);
  }
  return at::constant_pad_nd(x, amounts);
}

Tensor FNOImpl::forward(const Tensor& x, const Sizes& sizes) {
  group_.raise(x, problem_of_input(x, sizes));
  const SplitExtent split = split_of(x, sizes);
  Tensor v = lifting_(options_.coordinates() ? coordinates(x, split) : x);
  SplitExtent wider = split;
  if (options_.padding() > 0) v = padded(v, split, wider);
  for (size_t layer = 0; layer < spectral_->size(); ++layer) {
    const Tensor convolved = spectral_->at<SpectralConvolutionImpl>(layer).forward(v, wider);
    v = convolved + bypass_->at<PointwiseImpl>(layer).forward(v);
    if (layer + 1 < spectral_->size()) v = activation_(v);
  }
  if (options_.padding() > 0) {
    for (int64_t dim = 2; dim < x.dim(); ++dim) v = v.narrow(dim, 0, x.size(dim));
  }
  return output_(activation_(projection_(v)));
}

}  // namespace meshrun
