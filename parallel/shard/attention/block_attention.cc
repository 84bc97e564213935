#include "parallel/shard/attention/block_attention.h"

#include <algorithm>
#include <array>
#include <atomic>
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

std::atomic<int64_t> most{int64_t{1} << 24};

// Null: products of matrices.
const FusedAttention* kernel_for(const BlockOperands& operands) {
  const Tensor& query = operands.query;
  const int64_t extent = query.size(3);
  if (operands.wants_mask_gradient || operands.dropout != nullptr ||
      extent != operands.value.size(3)) {
    return nullptr;
  }
  // What the grids of GPUs can have, and a maximum that a scale does not turn round.
  constexpr int64_t kMostBlocks = 65535;
  const bool fits = query.size(0) <= kMostBlocks && query.size(1) <= kMostBlocks;
  if (!query.device().is_cpu() && !(fits && operands.scale > 0)) return nullptr;
  return fused_attention(query.device(), operands.dtype, extent, operands.mask.has_value());
}

// Batches and heads of keys that are computed together.
struct Heads {
  int64_t batch_begin = 0;
  int64_t num_batches = 0;
  int64_t head_begin = 0;
  int64_t num_heads = 0;

  // What they have of a tensor, which has batches in its first dimension, or one for all, and
  // `per_head` heads for each of the keys in its second, or one for all.
  Tensor of(const Tensor& tensor, int64_t per_head) const {
    Tensor part = tensor;
    if (part.size(0) != 1) part = part.narrow(0, batch_begin, num_batches);
    if (part.size(1) != 1) part = part.narrow(1, head_begin * per_head, num_heads * per_head);
    return part;
  }
};

// A part of a tile: rows of some heads.
struct Part {
  Heads heads;
  AttentionTile tile;
};

std::vector<Part> parts_of(const AttentionTile& tile, const BlockOperands& operands,
                           bool has_kernel) {
  const int64_t batches = operands.query.size(0);
  const int64_t key_heads = operands.key.size(1);
  const Part whole = {{0, batches, 0, key_heads}, tile};
  if (has_kernel && !(operands.mask && tile.is_causal)) return {whole};
  const int64_t per_head = operands.query.size(1) / key_heads;
  const int64_t row = per_head * tile.key_size;
  const int64_t allowed = most_scores();
  const int64_t heads =
      std::clamp<int64_t>(allowed / (row * tile.query_size), 1, batches * key_heads);
  const int64_t rows = std::clamp<int64_t>(allowed / row, 1, tile.query_size);
  const int64_t heads_at_once = std::min(heads, key_heads);
  const int64_t batches_at_once = std::max<int64_t>(heads / key_heads, 1);
  std::vector<Part> parts;
  for (int64_t batch = 0; batch < batches; batch += batches_at_once) {
    for (int64_t head = 0; head < key_heads; head += heads_at_once) {
      const Heads some = {batch, std::min(batches_at_once, batches - batch), head,
                          std::min(heads_at_once, key_heads - head)};
      for (int64_t begin = 0; begin < tile.query_size; begin += rows) {
        const int64_t size = std::min(rows, tile.query_size - begin);
        for (AttentionTile cut : cut_attention(begin, size, 0, tile.key_size, tile.is_causal)) {
          cut.query_begin += tile.query_begin + begin;
          cut.key_begin += tile.key_begin;
          parts.push_back({some, cut});
        }
      }
    }
  }
  return parts;
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

TileOperands operands_of(const Part& part, const BlockOperands& block) {
  const int64_t per_head = block.query.size(1) / block.key.size(1);
  const AttentionTile& tile = part.tile;
  BlockOperands operands = block;
  operands.query = part.heads.of(block.query, per_head);
  const Tensor query = rows_of(operands.query, tile);
  TileOperands of_tile{.query = query,
                       .key = keys_of(part.heads.of(block.key, 1), tile, query.size(1)),
                       .value = keys_of(part.heads.of(block.value, 1), tile, query.size(1)),
                       .is_causal = tile.is_causal,
                       .scale = block.scale,
                       .dtype = block.dtype};
  if (block.mask) of_tile.bias = mask_slice(part.heads.of(*block.mask, per_head), tile);
  if (block.dropout != nullptr) {
    AttentionDropout dropout = *block.dropout;
    dropout.offsets[0] += part.heads.batch_begin;
    dropout.offsets[1] += part.heads.head_begin * per_head;
    operands.dropout = &dropout;
    of_tile.kept = kept_of(tile, operands);
  }
  return of_tile;
}

// Adds a part's result to that of the rows so far.
void merge(const Tensor& output, const Tensor& logsumexp, const Tensor& added,
           const Tensor& added_logsumexp) {
  const Tensor merged = at::logaddexp(logsumexp, added_logsumexp);
  const Tensor divisor = finite_logsumexp(merged);
  output.mul_(exp_minus(logsumexp, divisor).unsqueeze(-1));
  output.addcmul_(added, exp_minus(added_logsumexp, divisor).unsqueeze(-1));
  logsumexp.copy_(merged);
}

}  // namespace

int64_t most_scores() { return most; }
void set_most_scores(int64_t count) { most = count; }

RunningAttention::RunningAttention(const Tensor& query, int64_t value_extent)
    : output_(
          at::zeros({query.size(0), query.size(1), query.size(2), value_extent}, query.options())),
      logsumexp_(at::full({query.size(0), query.size(1), query.size(2)}, kMinusInfinity,
                          query.options())) {}

void RunningAttention::add(const AttentionTile& tile, const BlockOperands& operands) {
  if (is_nothing(operands)) return;
  const FusedAttention* kernel = kernel_for(operands);
  const int64_t per_head = operands.query.size(1) / operands.key.size(1);
  for (const Part& part : parts_of(tile, operands, kernel != nullptr)) {
    const TileOperands of_part = operands_of(part, operands);
    const auto [added, logsumexp] =
        kernel != nullptr ? kernel->attend(of_part) : attend_by_products(of_part);
    merge(rows_of(part.heads.of(output_, per_head), part.tile),
          rows_of(part.heads.of(logsumexp_, per_head), part.tile), added, logsumexp);
  }
}

void add_gradients(const AttentionTile& tile, const BlockOperands& operands,
                   const Tensor& grad_output, const Tensor& output, const Tensor& logsumexp,
                   BlockGradients& sums) {
  if (is_nothing(operands)) return;
  const FusedAttention* kernel = kernel_for(operands);
  const int64_t per_head = operands.query.size(1) / operands.key.size(1);
  for (const auto& [heads, cut] : parts_of(tile, operands, kernel != nullptr)) {
    const TileOperands of_part = operands_of({heads, cut}, operands);
    const Tensor grad = rows_of(heads.of(grad_output, per_head), cut);
    const Tensor result = rows_of(heads.of(output, per_head), cut);
    const Tensor sum = rows_of(heads.of(logsumexp, per_head), cut);
    const TileGradients gradients = kernel != nullptr
                                        ? kernel->gradients(of_part, grad, result, sum)
                                        : gradients_by_products(of_part, grad, result, sum);
    rows_of(heads.of(sums.query, per_head), cut).add_(gradients.query);
    add_to_keys(heads.of(sums.key, 1), cut, gradients.key);
    add_to_keys(heads.of(sums.value, 1), cut, gradients.value);
    if (operands.wants_mask_gradient) {
      const Tensor slice = mask_slice(heads.of(sums.mask, per_head), cut);
      slice.add_(gradients.scores.sum_to_size(slice.sizes()));
    }
  }
}

}  // namespace meshrun
