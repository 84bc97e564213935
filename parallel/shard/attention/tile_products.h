// One tile of attention by products of matrices, with its scores in memory: what LibTorch's fused
// kernels (fused_attention.h) cannot compute, and what they are compared with.
//
// No gradients are recorded. Threads: any. Errors: LibTorch's, on operands that do not fit.
#pragma once

#include <tuple>

#include "ATen/core/Tensor.h"

namespace meshrun {

// query (B, H, L, E), key (B, H, S, E), value (B, H, S, Ev), in the accumulating dtype.
struct TileOperands {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  // Added to the scores, (B or 1, H or 1, L or 1, S or 1); undefined: nothing.
  at::Tensor bias;
  // What the weights are multiplied by, (B, H, L, S), for dropout; undefined: nothing.
  at::Tensor kept;
  bool is_causal = false;  // query i sees keys j <= i
  double scale = 1;
  at::ScalarType dtype = at::kFloat;  // in which the operands came
};

struct TileGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor scores;  // after the scale; by products alone
};

// (softmax-weighted values, logarithm of the weights' sum (B, H, L)). Rows without an allowed key:
// zeros, and -inf.
std::tuple<at::Tensor, at::Tensor> attend_by_products(const TileOperands& tile);

// grad_output and output: (B, H, L, Ev), of all tiles together; logsumexp: of all tiles, and finite
// (finite_logsumexp).
TileGradients gradients_by_products(const TileOperands& tile, const at::Tensor& grad_output,
                                    const at::Tensor& output, const at::Tensor& logsumexp);

// The bias with the triangle of a causal tile; undefined: neither is there.
at::Tensor bias_with_triangle(const TileOperands& tile);
// 0 for -inf: exp(score - logsumexp) of a row without keys is then 0, not NaN.
at::Tensor finite_logsumexp(const at::Tensor& logsumexp);
// exp(x - minus), where x may be -inf and `minus` is finite.
at::Tensor exp_minus(const at::Tensor& x, const at::Tensor& minus);

}  // namespace meshrun
