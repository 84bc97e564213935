#include "parallel/nn/distributed_afno_layers.h"

#include <cmath>
#include <utility>

#include "ATen/ATen.h"
#include "ATen/OpMathType.h"
#include "parallel/base/errors.h"
#include "parallel/nn/autocast.h"

namespace meshrun {

using at::Tensor;
using detail::PieceOf;

namespace detail {

GroupArgument::Handle model_parallel_group(const GroupArgument& group) {
  try {
    return group.get();
  } catch (const UndefinedGroupError& error) {
    throw UndefinedGroupError(
        std::string("Distributed AFNO needs to have model parallel group created first. Check the "
                    "MODEL_PARALLEL_SIZE environment variable: ") +
        error.what_without_backtrace());
  }
}

void WeightsImpl::set_weight(const Tensor& whole, int64_t dim) {
  weight = dim < 0 ? register_parameter("weight", whole) : register_shard("weight", whole, dim);
}

void WeightsImpl::set_bias(const Tensor& whole, int64_t dim) {
  bias = dim < 0 ? register_parameter("bias", whole) : register_shard("bias", whole, dim);
}

namespace {

// PhysicsNeMo cuts this distribution off at 2, a hundred deviations.
Tensor normal(at::IntArrayRef shape) { return at::randn(shape) * 0.02; }

void check_value(const std::string& problem) { TORCH_CHECK_VALUE(problem.empty(), problem); }

std::string problem_of_input(const char* layer, const Tensor& x, int64_t chans) {
  if (!x.defined()) return std::string(layer) + ": the input is undefined";
  if (x.dim() == 4 && x.size(1) == chans) return "";
  return c10::str(layer, ": expected an input of shape (B, ", chans, ", H, W), got ", x.sizes());
}

Tensor to_channels_last(const Tensor& x) { return x.permute({0, 2, 3, 1}); }
Tensor to_channels_first(const Tensor& x) { return x.permute({0, 3, 1, 2}); }

SplitRange piece(const ChannelGroup& group, int64_t extent) {
  return split_range(extent, group.size(), group.rank());
}

PieceOf all_columns(const Tensor& x) { return {{0, x.size(3)}, x.size(3)}; }

template <typename Transform>
Tensor transformed(Transform& transform, const Tensor& x, const FieldColumns& columns) {
  try {
    return transform(x);
  } catch (const c10::Error&) {
    columns.has_raised = true;
    throw;
  }
}

int64_t or_else(int64_t value, int64_t otherwise) { return value != 0 ? value : otherwise; }

}  // namespace
}  // namespace detail

using detail::check_value;

// ---- DistributedMLP

DistributedMLPImpl::DistributedMLPImpl(const DistributedMLPOptions& options)
    : DistributedMLPImpl(options, detail::model_parallel_group(options.group())) {}

DistributedMLPImpl::DistributedMLPImpl(const DistributedMLPOptions& options,
                                       GroupArgument::Handle group)
    : options_(options),
      channels_(group),
      activation_(get_activation(options.act_layer())),
      hidden_features_(detail::or_else(options.hidden_features(), options.in_features())),
      out_features_(detail::or_else(options.out_features(), options.in_features())) {
  check_value(detail::problem_of_mlp(options.in_features(), hidden_features_, out_features_,
                                     options.drop(), channels_.size()));
  fc1_ = register_module("fc1", detail::Weights(group));
  fc1_->set_weight(detail::normal({hidden_features_, options.in_features()}), 0);
  fc1_->set_bias(at::zeros({hidden_features_}), 0);
  fc2_ = register_module("fc2", detail::Weights(group));
  fc2_->set_weight(detail::normal({out_features_, hidden_features_}), 1);
  fc2_->set_bias(at::zeros({out_features_}), options.output_is_matmul_parallel() ? 0 : -1);
}

Tensor DistributedMLPImpl::forward(const Tensor& x) {
  const int64_t chans = options_.input_is_matmul_parallel()
                            ? detail::piece(channels_, options_.in_features()).size()
                            : int64_t{options_.in_features()};
  channels_.raise(x, detail::problem_of_input("DistributedMLP", x, chans));
  return detail::to_channels_first(
      forward_channels_last(detail::to_channels_last(x), detail::all_columns(x)));
}

Tensor DistributedMLPImpl::forward_channels_last(const Tensor& x, const PieceOf& columns) {
  const Tensor whole = options_.input_is_matmul_parallel()
                           ? channels_.all_gather(x, -1, options_.in_features())
                           : channels_.copy_to(x);
  Tensor hidden = activation_(at::linear(whole, fc1_->weight, fc1_->bias));
  hidden = detail::dropout(hidden, options_.drop(), is_training(), columns,
                           {detail::piece(channels_, hidden_features_), hidden_features_});
  const Tensor part = at::linear(hidden, fc2_->weight);
  const bool is_split = options_.output_is_matmul_parallel();
  const Tensor sum = is_split ? channels_.reduce_scatter(part, -1) : channels_.reduce_from(part);
  const SplitRange own =
      is_split ? detail::piece(channels_, out_features_) : SplitRange{0, out_features_};
  return detail::dropout(sum + fc2_->bias, options_.drop(), is_training(), columns,
                         {own, out_features_});
}

// ---- DistributedPatchEmbed

DistributedPatchEmbedImpl::DistributedPatchEmbedImpl(const DistributedPatchEmbedOptions& options)
    : DistributedPatchEmbedImpl(options, detail::model_parallel_group(options.group())) {}

DistributedPatchEmbedImpl::DistributedPatchEmbedImpl(const DistributedPatchEmbedOptions& options,
                                                     GroupArgument::Handle group)
    : options_(options), channels_(group) {
  check_value(detail::problem_of_patch_embed(
      options.inp_shape(), options.patch_size(), options.in_chans(), options.embed_dim(),
      options.input_is_matmul_parallel(), options.output_is_matmul_parallel(), channels_.size()));
  const int64_t p = options.patch_size()[0], q = options.patch_size()[1];
  const int64_t in_chans = options.in_chans(), embed_dim = options.embed_dim();
  // As torch.nn.Conv2d's.
  const double bound = 1 / std::sqrt(static_cast<double>(in_chans * p * q));
  const int64_t dim = options.output_is_matmul_parallel() ? 0 : -1;
  proj_ = register_module("proj", detail::Weights(group));
  proj_->set_weight(at::empty({embed_dim, in_chans, p, q}).uniform_(-bound, bound), dim);
  proj_->set_bias(at::empty({embed_dim}).uniform_(-bound, bound), dim);
}

Tensor DistributedPatchEmbedImpl::forward(const Tensor& x) {
  const int64_t chans =
      options_.in_chans() / (options_.input_is_matmul_parallel() ? channels_.size() : 1);
  const std::vector<int64_t>& shape = options_.inp_shape();
  std::string problem = detail::problem_of_input("DistributedPatchEmbed", x, chans);
  if (problem.empty() && (x.size(2) != shape[0] || x.size(3) != shape[1])) {
    problem = c10::str("Expected input shape (B, ", chans, ", ", shape[0], ", ", shape[1],
                       "), got ", x.sizes());
  }
  channels_.raise(x, problem);
  return forward_channels_last(x).flatten(1, 2).transpose(1, 2);
}

Tensor DistributedPatchEmbedImpl::forward_channels_last(const Tensor& x) {
  const bool is_split = options_.output_is_matmul_parallel();
  Tensor whole = x;
  if (options_.input_is_matmul_parallel()) {
    // Where every rank embeds all channels, the cotangents are equal and nothing is summed.
    whole = is_split ? channels_.all_gather(x, 1, options_.in_chans())
                     : channels_.gather_from(x, 1, options_.in_chans());
  } else if (is_split) {
    whole = channels_.copy_to(x);
  }
  const Tensor patches =
      detail::patches_of(whole, options_.patch_size()[0], options_.patch_size()[1]);
  return at::linear(patches, proj_->weight.flatten(1), proj_->bias);
}

// ---- DistributedAFNO2D

DistributedAFNO2DImpl::DistributedAFNO2DImpl(const DistributedAFNO2DOptions& options)
    : DistributedAFNO2DImpl(options, detail::model_parallel_group(options.group())) {}

DistributedAFNO2DImpl::DistributedAFNO2DImpl(const DistributedAFNO2DOptions& options,
                                             GroupArgument::Handle group)
    : ShardedModule(group), options_(options), channels_(std::move(group)) {
  check_value(detail::problem_of_filter(
      options.hidden_size(), options.num_blocks(), options.sparsity_threshold(),
      options.hard_thresholding_fraction(), options.hidden_size_factor(), channels_.size()));
  const int64_t blocks = options.num_blocks(), width = options.hidden_size() / blocks;
  const int64_t hidden = width * options.hidden_size_factor();
  w1_ = register_shard("w1", detail::normal({2, blocks, width, hidden}), 1);
  b1_ = register_shard("b1", detail::normal({2, blocks, hidden}), 1);
  w2_ = register_shard("w2", detail::normal({2, blocks, hidden, width}), 1);
  b2_ = register_shard("b2", detail::normal({2, blocks, width}), 1);
}

Tensor DistributedAFNO2DImpl::forward(const Tensor& x) {
  const int64_t chans =
      options_.hidden_size() / (options_.input_is_matmul_parallel() ? channels_.size() : 1);
  channels_.raise(x, detail::problem_of_input("DistributedAFNO2D", x, chans));
  return detail::to_channels_first(
      forward_channels_last(detail::to_channels_last(x), {.piece = detail::all_columns(x)}));
}

Tensor DistributedAFNO2DImpl::forward_channels_last(const Tensor& x,
                                                    const detail::FieldColumns& columns) {
  // LibTorch's autocast would make the products bfloat16, of which there are no complex numbers.
  const AutocastGuard in_float32(x.device().type(), false);
  const Tensor own = options_.input_is_matmul_parallel() ? x : channels_.scatter_to(x, -1);
  const int64_t height = x.size(1), width = columns.piece.extent;
  const std::vector<int64_t> dims = {1, 2};
  const Tensor wide = own.to(at::toOpMathType(own.scalar_type()));
  const Tensor spectrum = columns.to_modes ? detail::transformed(*columns.to_modes, wide, columns)
                                           : at::fft_rfft2(wide, std::nullopt, dims, "ortho");
  // This rank's rows of the spectrum, and of those the ones that are kept.
  const SplitRange held = detail::piece(columns.group, height);
  const detail::ModeWindow window =
      detail::mode_window(height, width, options_.hard_thresholding_fraction());
  const SplitRange rows = detail::relative_overlap(window.rows, held);
  const Tensor kept =
      spectrum.narrow(1, rows.begin, rows.size()).narrow(2, 0, window.columns.size());
  const Tensor mixed = detail::mix_modes(kept, w1_, b1_, w2_, b2_, options_.sparsity_threshold());
  const Tensor padded = at::constant_pad_nd(
      mixed, {0, 0, 0, 0, 0, spectrum.size(2) - kept.size(2), rows.begin, held.size() - rows.end});
  const Tensor modes = at::view_as_complex(padded.contiguous());
  const Tensor field = columns.from_modes
                           ? detail::transformed(*columns.from_modes, modes, columns)
                           : at::fft_irfft2(modes, at::IntArrayRef{height, width}, dims, "ortho");
  const Tensor sum = field.to(own.scalar_type()) + own;
  return options_.output_is_matmul_parallel()
             ? sum
             : channels_.gather_from(sum, -1, options_.hidden_size());
}

}  // namespace meshrun
