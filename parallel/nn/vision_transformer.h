// A vision transformer that maps fields to fields (Dosovitskiy et al. 2020, arXiv:2010.11929):
// patches of a two-dimensional field are tokens, and each token gives a patch of the result.
//
//   VisionTransformer model(VisionTransformerOptions({64, 64}, 1, 1).patch_size({4, 4}));
//   at::Tensor y = model(x);  // [B, 1, 64, 64] -> [B, 1, 64, 64]
//
// y = patches(norm(blocks(tokens(x) + pos_embed))); tokens(x) is a convolution with the patch as
// kernel and stride; a block is h = v + attention(norm(v)), h + perceptron(norm(h)), with
// scaled_dot_product_attention over all tokens, gelu in the perceptron, and layer norms before.
// Queries, keys and values have no bias.
//
// On ShardTensors (parallel/shard) that hold pieces of rows, Shard(2), the tokens are in pieces
// too: whole rows of patches, so a rank's piece of H is a multiple of the patch's height. W stays
// whole. Nothing in the model knows of it: see distribute_module.h.
//
// Dtypes: that of the parameters. Backward: LibTorch's. Threads: one at a time per module. Errors:
// c10::ValueError for options and inputs that do not fit, with both sides' values.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "parallel/base/arguments.h"

namespace meshrun {

struct VisionTransformerOptions {
  VisionTransformerOptions(std::vector<int64_t> image_size, IntArgument in_channels,
                           IntArgument out_channels)
      : image_size_(std::move(image_size)),
        in_channels_(in_channels),
        out_channels_(out_channels) {}

  // Height and width; a multiple of patch_size.
  TORCH_ARG(std::vector<int64_t>, image_size);
  TORCH_ARG(IntArgument, in_channels);
  TORCH_ARG(IntArgument, out_channels);
  TORCH_ARG(std::vector<int64_t>, patch_size) = {8, 8};
  TORCH_ARG(IntArgument, embed_dim) = 128;
  TORCH_ARG(IntArgument, depth) = 4;
  // Divides embed_dim.
  TORCH_ARG(IntArgument, num_heads) = 4;
  // Hidden features of a block's perceptron, of embed_dim.
  TORCH_ARG(double, mlp_ratio) = 4.0;
  // After the attention and in the perceptron.
  TORCH_ARG(double, dropout) = 0.0;
  // What a block computes within is computed again in the backward pass (activation_checkpoint.h).
  TORCH_ARG(BoolArgument, checkpoint_blocks) = false;
};

// [B, tokens, embed_dim] -> the same.
class TransformerBlockImpl : public torch::nn::Module {
 public:
  TransformerBlockImpl(IntArgument embed_dim, IntArgument num_heads, IntArgument hidden,
                       double dropout);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor attention(const at::Tensor& x);
  at::Tensor perceptron(const at::Tensor& x);

  const int64_t num_heads_;
  const double dropout_;
  torch::nn::LayerNorm norm1_ = nullptr;
  torch::nn::Linear qkv_ = nullptr;
  torch::nn::Linear projection_ = nullptr;
  torch::nn::LayerNorm norm2_ = nullptr;
  torch::nn::Linear hidden_ = nullptr;
  torch::nn::Linear output_ = nullptr;
};
TORCH_MODULE(TransformerBlock);

// [B, in_channels, H, W] -> [B, out_channels, H, W].
class VisionTransformerImpl : public torch::nn::Module {
 public:
  explicit VisionTransformerImpl(const VisionTransformerOptions& options);
  at::Tensor forward(const at::Tensor& x);
  const VisionTransformerOptions& options() const { return options_; }

 private:
  const VisionTransformerOptions options_;
  torch::nn::Conv2d tokens_ = nullptr;
  at::Tensor pos_embed_;  // [1, H / patch, W / patch, embed_dim]
  torch::nn::ModuleList blocks_ = nullptr;
  torch::nn::LayerNorm norm_ = nullptr;
  torch::nn::Linear head_ = nullptr;
};
TORCH_MODULE(VisionTransformer);

}  // namespace meshrun
