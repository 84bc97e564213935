// The arithmetic of AFNO, on channels-last tensors [batch, rows, columns, channels]. Internal to
// parallel/nn. All are differentiable to any order and run on the tensors' device.
//
// Threads: any. Errors: none of their own; callers check shapes.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/base/split.h"
#include "parallel/nn/channel_group.h"

namespace meshrun::detail {

// [B, C, h * p, w * q] -> [B, h, w, C * p * q]: a convolution whose stride is its kernel is one
// product with these rows. Any extent may be 0.
at::Tensor patches_of(const at::Tensor& image, int64_t p, int64_t q);

// [B, h, w, p * q * C] -> [B, C, h * p, w * q].
at::Tensor image_of(const at::Tensor& patches, int64_t p, int64_t q);

// LayerNorm over all channels, of which this rank has a piece as large as every other's; weight and
// bias are pieces too. Means and variances of the pieces are gathered, two numbers per position and
// rank, and combined (Chan et al. 1979). Means are taken in float32 at least.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps, const ChannelGroup& channels);

// softshrink(relu(x w1 + b1) w2 + b2), in complex numbers: the block-diagonal product is of complex
// matrices, relu and softshrink act on real and imaginary parts. x is complex [B, h, w, blocks *
// i]; w1 [2, blocks, i, o], b1 [2, blocks, o], w2 [2, blocks, o, i], b2 [2, blocks, i], with the
// real parts first. Returns the real view [B, h, w, blocks * i, 2]. One real product per layer and
// block.
at::Tensor mix_modes(const at::Tensor& x, const at::Tensor& w1, const at::Tensor& b1,
                     const at::Tensor& w2, const at::Tensor& b2, double sparsity_threshold);

// This rank's piece of a dimension.
struct PieceOf {
  SplitRange own;
  int64_t extent = 0;
};

// Drops elements with probability `p` and scales the others. The mask is that of the unsharded
// tensor, drawn in whole on each rank: ranks seeded alike drop what one rank alone drops.
at::Tensor dropout(const at::Tensor& x, double p, bool training, const PieceOf& columns,
                   const PieceOf& channels);

// Drops whole samples, equally on all ranks that are seeded alike (Huang et al. 2016).
at::Tensor drop_path(const at::Tensor& x, double p, bool training);

}  // namespace meshrun::detail
