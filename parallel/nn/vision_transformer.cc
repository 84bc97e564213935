#include "parallel/nn/vision_transformer.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include "parallel/nn/activation_checkpoint.h"

namespace meshrun {
namespace {

using at::Tensor;

void check(const VisionTransformerOptions& options) {
  TORCH_CHECK_VALUE(options.image_size().size() == 2 && options.patch_size().size() == 2,
                    "VisionTransformer: image_size ", options.image_size(), " and patch_size ",
                    options.patch_size(), " should have a height and a width each");
  for (size_t i = 0; i < 2; ++i) {
    const int64_t image = options.image_size()[i];
    const int64_t patch = options.patch_size()[i];
    TORCH_CHECK_VALUE(image > 0 && patch > 0 && image % patch == 0,
                      "VisionTransformer: image_size ", options.image_size(),
                      " is not a multiple of patch_size ", options.patch_size());
  }
  const int64_t embed_dim = options.embed_dim();
  const int64_t num_heads = options.num_heads();
  TORCH_CHECK_VALUE(embed_dim > 0 && num_heads > 0 && embed_dim % num_heads == 0,
                    "VisionTransformer: num_heads ", num_heads, " does not divide embed_dim ",
                    embed_dim);
  const int64_t depth = options.depth();
  TORCH_CHECK_VALUE(depth >= 0, "VisionTransformer: depth is ", depth);
  TORCH_CHECK_VALUE(options.mlp_ratio() > 0, "VisionTransformer: mlp_ratio is ",
                    options.mlp_ratio());
  TORCH_CHECK_VALUE(options.dropout() >= 0 && options.dropout() < 1,
                    "VisionTransformer: dropout is ", options.dropout(), ", not in [0, 1)");
}

}  // namespace

TransformerBlockImpl::TransformerBlockImpl(IntArgument embed_dim, IntArgument num_heads,
                                           IntArgument hidden, double dropout)
    : num_heads_(num_heads), dropout_(dropout) {
  using torch::nn::LayerNorm;
  using torch::nn::LayerNormOptions;
  using torch::nn::Linear;
  norm1_ = register_module("norm1", LayerNorm(LayerNormOptions({embed_dim})));
  // A bias of the keys would change nothing, and have rounding for a gradient.
  qkv_ = register_module("qkv",
                         Linear(torch::nn::LinearOptions(embed_dim, 3 * embed_dim).bias(false)));
  projection_ = register_module("projection", Linear(embed_dim, embed_dim));
  norm2_ = register_module("norm2", LayerNorm(LayerNormOptions({embed_dim})));
  hidden_ = register_module("hidden", Linear(embed_dim, hidden));
  output_ = register_module("output", Linear(hidden, embed_dim));
}

Tensor TransformerBlockImpl::attention(const Tensor& x) {
  const int64_t batch = x.size(0);
  const int64_t tokens = x.size(1);
  const int64_t features = x.size(2);
  // [3, B, heads, tokens, features / heads]
  const Tensor qkv =
      qkv_(x).view({batch, tokens, 3, num_heads_, features / num_heads_}).permute({2, 0, 3, 1, 4});
  const Tensor mixed =
      at::scaled_dot_product_attention(qkv.select(0, 0), qkv.select(0, 1), qkv.select(0, 2));
  return projection_(mixed.transpose(1, 2).reshape({batch, tokens, features}));
}

Tensor TransformerBlockImpl::perceptron(const Tensor& x) {
  return output_(at::dropout(at::gelu(hidden_(x)), dropout_, is_training()));
}

Tensor TransformerBlockImpl::forward(const Tensor& x) {
  const Tensor h = x + at::dropout(attention(norm1_(x)), dropout_, is_training());
  return h + at::dropout(perceptron(norm2_(h)), dropout_, is_training());
}

VisionTransformerImpl::VisionTransformerImpl(const VisionTransformerOptions& options)
    : options_(options) {
  check(options);
  const int64_t embed_dim = options.embed_dim();
  const int64_t out_channels = options.out_channels();
  const std::vector<int64_t>& patch = options.patch_size();
  tokens_ = register_module(
      "tokens",
      torch::nn::Conv2d(
          torch::nn::Conv2dOptions(options.in_channels(), embed_dim, patch).stride(patch)));
  constexpr double kDeviation = 0.02;
  pos_embed_ = register_parameter(
      "pos_embed", kDeviation * at::randn({1, options.image_size()[0] / patch[0],
                                           options.image_size()[1] / patch[1], embed_dim}));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  const auto hidden = static_cast<int64_t>(static_cast<double>(embed_dim) * options.mlp_ratio());
  for (int64_t i = 0; i < options.depth(); ++i) {
    blocks_->push_back(TransformerBlock(embed_dim, options.num_heads(), hidden, options.dropout()));
  }
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({embed_dim})));
  head_ = register_module("head", torch::nn::Linear(embed_dim, patch[0] * patch[1] * out_channels));
}

Tensor VisionTransformerImpl::forward(const Tensor& x) {
  const int64_t in_channels = options_.in_channels();
  const int64_t out_channels = options_.out_channels();
  TORCH_CHECK_VALUE(x.dim() == 4 && x.size(1) == in_channels &&
                        x.sizes().slice(2) == at::IntArrayRef(options_.image_size()),
                    "VisionTransformer: the input's shape is ", x.sizes(), ", not [B, ",
                    in_channels, ", ", options_.image_size()[0], ", ", options_.image_size()[1],
                    "]");
  const int64_t batch = x.size(0);
  const std::vector<int64_t>& patch = options_.patch_size();
  const int64_t rows = options_.image_size()[0] / patch[0];
  const int64_t columns = options_.image_size()[1] / patch[1];
  Tensor v = (tokens_(x).permute({0, 2, 3, 1}) + pos_embed_).flatten(1, 2);
  for (const auto& module : *blocks_) {
    auto* block = module->as<TransformerBlock>();
    v = options_.checkpoint_blocks()
            ? checkpoint([block](const Tensor& input) { return block->forward(input); }, v)
            : block->forward(v);
  }
  // [B, rows, columns, C, p, p] -> [B, C, rows, p, columns, p]
  return head_(norm_(v))
      .view({batch, rows, columns, out_channels, patch[0], patch[1]})
      .permute({0, 3, 1, 4, 2, 5})
      .reshape({batch, out_channels, options_.image_size()[0], options_.image_size()[1]});
}

}  // namespace meshrun
