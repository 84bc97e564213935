#include "parallel/shard/attention/block_attention.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/logaddexp.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/attention/fused_attention.h"
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

bool is_nothing(const BlockOperands& operands) {
  return operands.query.size(0) == 0 || operands.query.size(1) == 0;
}

// Null: products of matrices.
const FusedAttention* kernel_for(const BlockOperands& operands) {
  const int64_t extent = operands.query.size(3);
  if (operands.wants_mask_gradient || operands.dropout != nullptr ||
      extent != operands.value.size(3)) {
    return nullptr;
  }
  return fused_attention(operands.query.device(), operands.dtype, extent,
                         operands.mask.has_value());
}

// The tile by groups of queries whose scores are few enough.
std::vector<AttentionTile> row_groups(const AttentionTile& tile, const BlockOperands& operands) {
  const int64_t scores_of_row = operands.query.size(0) * operands.query.size(1) * tile.key_size;
  const int64_t rows =
      std::clamp<int64_t>(kMostScores / std::max<int64_t>(scores_of_row, 1), 1, tile.query_size);
  std::vector<AttentionTile> groups;
  for (int64_t begin = 0; begin < tile.query_size; begin += rows) {
    const int64_t size = std::min(rows, tile.query_size - begin);
    for (AttentionTile group : cut_attention(begin, size, 0, tile.key_size, tile.is_causal)) {
      group.query_begin += tile.query_begin + begin;
      group.key_begin += tile.key_begin;
      groups.push_back(group);
    }
  }
  return groups;
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

TileOperands operands_of(const AttentionTile& tile, const BlockOperands& operands) {
  const Tensor query = rows_of(operands.query, tile);
  TileOperands of_tile{.query = query,
                       .key = keys_of(operands.key, tile, query.size(1)),
                       .value = keys_of(operands.value, tile, query.size(1)),
                       .is_causal = tile.is_causal,
                       .scale = operands.scale,
                       .dtype = operands.dtype};
  if (operands.mask) of_tile.bias = mask_slice(*operands.mask, tile);
  if (operands.dropout != nullptr) of_tile.kept = kept_of(tile, operands);
  return of_tile;
}

}  // namespace

RunningAttention::RunningAttention(const Tensor& query, int64_t value_extent)
    : output_(
          at::zeros({query.size(0), query.size(1), query.size(2), value_extent}, query.options())),
      logsumexp_(at::full({query.size(0), query.size(1), query.size(2)}, kMinusInfinity,
                          query.options())) {}

void RunningAttention::add(const AttentionTile& tile, const BlockOperands& operands) {
  if (is_nothing(operands)) return;
  if (const FusedAttention* kernel = kernel_for(operands)) {
    const auto [added, logsumexp] = kernel->attend(operands_of(tile, operands));
    merge(tile, added, logsumexp);
    return;
  }
  for (const AttentionTile& group : row_groups(tile, operands)) {
    const auto [added, logsumexp] = attend_by_products(operands_of(group, operands));
    merge(group, added, logsumexp);
  }
}

void RunningAttention::merge(const AttentionTile& tile, const Tensor& added,
                             const Tensor& added_logsumexp) {
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
  const FusedAttention* kernel = kernel_for(operands);
  const auto groups =
      kernel != nullptr ? std::vector<AttentionTile>{tile} : row_groups(tile, operands);
  for (const AttentionTile& group : groups) {
    const TileOperands of_group = operands_of(group, operands);
    const Tensor grad = rows_of(grad_output, group);
    const Tensor result = rows_of(output, group);
    const Tensor sum = rows_of(logsumexp, group);
    const TileGradients gradients = kernel != nullptr
                                        ? kernel->gradients(of_group, grad, result, sum)
                                        : gradients_by_products(of_group, grad, result, sum);
    rows_of(sums.query, group).add_(gradients.query);
    add_to_keys(sums.key, group, gradients.key);
    add_to_keys(sums.value, group, gradients.value);
    if (operands.wants_mask_gradient) {
      const Tensor slice = mask_slice(sums.mask, group);
      slice.add_(gradients.scores.sum_to_size(slice.sizes()));
    }
  }
}

}  // namespace meshrun
