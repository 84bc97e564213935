#include "parallel/shard/attention/block_attention.h"

#include <array>
#include <limits>
#include <tuple>

#include "ATen/TensorOperators.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/logaddexp.h"
#include "ATen/ops/logsumexp.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/random/counter_random.h"

namespace meshrun {
namespace {

using at::Tensor;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

Tensor rows_of(const Tensor& tensor, const AttentionTile& tile) {
  return tensor.narrow(2, tile.query_begin, tile.query_size);
}

// Keys or values of the tile, one head per query head.
Tensor keys_of(const Tensor& tensor, const AttentionTile& tile, int64_t num_heads) {
  const Tensor keys = tensor.narrow(2, tile.key_begin, tile.key_size);
  const int64_t heads = keys.size(1);
  if (heads == num_heads) return keys;
  return keys.unsqueeze(2)
      .expand({keys.size(0), heads, num_heads / heads, keys.size(2), keys.size(3)})
      .reshape({keys.size(0), num_heads, keys.size(2), keys.size(3)});
}

// Back: the sum over the query heads of each key head.
void add_to_keys(const Tensor& sum, const AttentionTile& tile, const Tensor& gradient) {
  Tensor part = gradient;
  const int64_t heads = sum.size(1);
  if (gradient.size(1) != heads) {
    part = gradient.reshape({sum.size(0), heads, -1, gradient.size(2), gradient.size(3)}).sum(2);
  }
  sum.narrow(2, tile.key_begin, tile.key_size).add_(part);
}

// The part of the mask, or of its gradient, that is the tile's.
Tensor mask_slice(const Tensor& mask, const AttentionTile& tile) {
  Tensor slice = mask;
  if (slice.size(2) != 1) slice = rows_of(slice, tile);
  if (slice.size(3) != 1) slice = slice.narrow(3, tile.key_begin, tile.key_size);
  return slice;
}

// What is added to the tile's scores; undefined: nothing.
Tensor bias_of(const AttentionTile& tile, const BlockOperands& operands, bool with_triangle) {
  Tensor bias;
  if (operands.mask) bias = mask_slice(*operands.mask, tile);
  if (!tile.is_causal || !with_triangle) return bias;
  const Tensor triangle =
      at::full({tile.query_size, tile.key_size}, kMinusInfinity, operands.query.options()).triu_(1);
  return bias.defined() ? bias + triangle : triangle;
}

bool takes_flash(const BlockOperands& operands) {
  return operands.query.device().is_cpu() && !operands.wants_mask_gradient && !operands.dropout &&
         operands.query.size(3) == operands.value.size(3) && operands.query.size(3) > 0;
}

// The flash kernel reads rows as runs of memory, whatever the last stride says; LibTorch looks at
// that before it chooses the kernel.
Tensor with_runs(const Tensor& tensor) {
  return tensor.size(3) <= 1 || tensor.stride(3) == 1 ? tensor : tensor.contiguous();
}

bool is_nothing(const BlockOperands& operands) {
  return operands.query.size(0) == 0 || operands.query.size(1) == 0;
}

// The flash kernel takes a triangle of its own only where there is no mask: it cannot tell a row
// that both together leave without keys.
std::optional<Tensor> flash_mask(const AttentionTile& tile, const BlockOperands& operands) {
  if (!operands.mask) return std::nullopt;
  return bias_of(tile, operands, true);
}

Tensor scores_of(const Tensor& query, const Tensor& key, const AttentionTile& tile,
                 const BlockOperands& operands) {
  Tensor scores = at::matmul(query, key.transpose(2, 3)).mul_(operands.scale);
  if (const Tensor bias = bias_of(tile, operands, true); bias.defined()) scores.add_(bias);
  return scores;
}

// What the tile's weights are multiplied by: 0, or 1 / (1 - probability). The same in both passes.
Tensor kept_of(const AttentionTile& tile, const BlockOperands& operands) {
  const AttentionDropout& dropout = *operands.dropout;
  const Tensor kept =
      at::empty({operands.query.size(0), operands.query.size(1), tile.query_size, tile.key_size},
                operands.query.options());
  const std::array<int64_t, 4> offsets = {dropout.offsets[0], dropout.offsets[1],
                                          dropout.offsets[2] + tile.query_begin,
                                          operands.first_key + tile.key_begin};
  const double probability = 1 - dropout.probability;
  fill_bernoulli(kept, {dropout.global_sizes, offsets}, dropout.operation, probability);
  return probability > 0 ? kept.div_(probability) : kept;
}

// exp(x - minus), where x may be -inf and `minus` is finite.
Tensor exp_minus(const Tensor& x, const Tensor& minus) { return (x - minus).exp_(); }

std::tuple<Tensor, Tensor> attend(const AttentionTile& tile, const BlockOperands& operands) {
  const Tensor query = rows_of(operands.query, tile);
  const Tensor key = keys_of(operands.key, tile, query.size(1));
  const Tensor value = keys_of(operands.value, tile, query.size(1));
  if (!takes_flash(operands)) {
    const Tensor scores = scores_of(query, key, tile, operands);
    const Tensor logsumexp = at::logsumexp(scores, {-1});
    const Tensor weights = exp_minus(scores, finite_logsumexp(logsumexp).unsqueeze(-1));
    if (operands.dropout != nullptr) weights.mul_(kept_of(tile, operands));
    return {at::matmul(weights, value), logsumexp};
  }
  const std::optional<Tensor> mask = flash_mask(tile, operands);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      with_runs(query), with_runs(key), with_runs(value), 0.0, tile.is_causal && !mask, mask,
      operands.scale);
  if (mask) {
    // It reports 0 for a row without an allowed key.
    logsumexp = logsumexp.masked_fill(mask->amax({-1}) == kMinusInfinity, kMinusInfinity);
  }
  return {output, logsumexp};
}

}  // namespace

Tensor finite_logsumexp(const Tensor& logsumexp) {
  return logsumexp.masked_fill(logsumexp == kMinusInfinity, 0.0);
}

RunningAttention::RunningAttention(const Tensor& query, int64_t value_extent)
    : output_(
          at::zeros({query.size(0), query.size(1), query.size(2), value_extent}, query.options())),
      logsumexp_(at::full({query.size(0), query.size(1), query.size(2)}, kMinusInfinity,
                          query.options())) {}

void RunningAttention::add(const AttentionTile& tile, const BlockOperands& operands) {
  if (is_nothing(operands)) return;
  const auto [added, added_logsumexp] = attend(tile, operands);
  const Tensor output = rows_of(output_, tile);
  const Tensor logsumexp = rows_of(logsumexp_, tile);
  const Tensor merged = at::logaddexp(logsumexp, added_logsumexp);
  const Tensor divisor = finite_logsumexp(merged);
  output.mul_(exp_minus(logsumexp, divisor).unsqueeze(-1));
  output.addcmul_(added, exp_minus(added_logsumexp, divisor).unsqueeze(-1));
  logsumexp.copy_(merged);
}

void add_gradients(const AttentionTile& tile, const BlockOperands& operands,
                   const Tensor& grad_output, const Tensor& output, const Tensor& logsumexp,
                   BlockGradients& sums) {
  if (is_nothing(operands)) return;
  const Tensor query = rows_of(operands.query, tile);
  const Tensor key = keys_of(operands.key, tile, query.size(1));
  const Tensor value = keys_of(operands.value, tile, query.size(1));
  const Tensor grad = rows_of(grad_output, tile);
  const Tensor result = rows_of(output, tile);
  if (takes_flash(operands)) {
    const std::optional<Tensor> mask = flash_mask(tile, operands);
    const auto [grad_query, grad_key, grad_value] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            with_runs(grad), with_runs(query), with_runs(key), with_runs(value), with_runs(result),
            rows_of(logsumexp, tile), 0.0, tile.is_causal && !mask, mask, operands.scale);
    rows_of(sums.query, tile).add_(grad_query);
    add_to_keys(sums.key, tile, grad_key);
    add_to_keys(sums.value, tile, grad_value);
    return;
  }
  const Tensor weights =
      exp_minus(scores_of(query, key, tile, operands), rows_of(logsumexp, tile).unsqueeze(-1));
  const Tensor along = (grad * result).sum(-1, /*keepdim=*/true);
  const Tensor grad_scores = at::matmul(grad, value.transpose(2, 3));
  Tensor used = weights;
  if (operands.dropout != nullptr) {
    const Tensor kept = kept_of(tile, operands);
    used = weights * kept;
    grad_scores.mul_(kept);
  }
  grad_scores.sub_(along).mul_(weights);
  add_to_keys(sums.value, tile, at::matmul(used.transpose(2, 3), grad));
  rows_of(sums.query, tile).add_(at::matmul(grad_scores, key), operands.scale);
  add_to_keys(sums.key, tile, at::matmul(grad_scores.transpose(2, 3), query).mul_(operands.scale));
  if (operands.wants_mask_gradient) {
    const Tensor slice = mask_slice(sums.mask, tile);
    slice.add_(grad_scores.sum_to_size(slice.sizes()));
  }
}

}  // namespace meshrun
