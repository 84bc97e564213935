#include "parallel/shard/attention/tile_products.h"

#include <limits>

#include "ATen/TensorOperators.h"
#include "ATen/ops/full.h"
#include "ATen/ops/logsumexp.h"
#include "ATen/ops/matmul.h"

namespace meshrun {
namespace {

using at::Tensor;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

Tensor scores_of(const TileOperands& tile) {
  Tensor scores = at::matmul(tile.query, tile.key.transpose(2, 3)).mul_(tile.scale);
  if (const Tensor bias = bias_with_triangle(tile); bias.defined()) scores.add_(bias);
  return scores;
}

}  // namespace

Tensor bias_with_triangle(const TileOperands& tile) {
  if (!tile.is_causal) return tile.bias;
  const Tensor triangle =
      at::full({tile.query.size(2), tile.key.size(2)}, kMinusInfinity, tile.query.options())
          .triu_(1);
  return tile.bias.defined() ? tile.bias + triangle : triangle;
}

Tensor finite_logsumexp(const Tensor& logsumexp) {
  return logsumexp.masked_fill(logsumexp == kMinusInfinity, 0.0);
}

Tensor exp_minus(const Tensor& x, const Tensor& minus) { return (x - minus).exp_(); }

std::tuple<Tensor, Tensor> attend_by_products(const TileOperands& tile) {
  const Tensor scores = scores_of(tile);
  const Tensor logsumexp = at::logsumexp(scores, {-1});
  const Tensor weights = exp_minus(scores, finite_logsumexp(logsumexp).unsqueeze(-1));
  if (tile.kept.defined()) weights.mul_(tile.kept);
  return {at::matmul(weights, tile.value), logsumexp};
}

TileGradients gradients_by_products(const TileOperands& tile, const Tensor& grad_output,
                                    const Tensor& output, const Tensor& logsumexp) {
  const Tensor weights = exp_minus(scores_of(tile), logsumexp.unsqueeze(-1));
  const Tensor along = (grad_output * output).sum(-1, /*keepdim=*/true);
  const Tensor grad_scores = at::matmul(grad_output, tile.value.transpose(2, 3));
  Tensor used = weights;
  if (tile.kept.defined()) {
    used = weights * tile.kept;
    grad_scores.mul_(tile.kept);
  }
  grad_scores.sub_(along).mul_(weights);
  return {at::matmul(grad_scores, tile.key).mul_(tile.scale),
          at::matmul(grad_scores.transpose(2, 3), tile.query).mul_(tile.scale),
          at::matmul(used.transpose(2, 3), grad_output), grad_scores};
}

}  // namespace meshrun
