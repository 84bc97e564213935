// Attention of each position to its neighbors on a line or a plane (arXiv:2204.07143), as NATTEN
// has it, on sharded and plain tensors.
//
// query, key, value: [batch, L, heads, D] or [batch, H, W, heads, D], of one dtype; the value's D
// may be another. A position attends to kernel_size positions along each dimension, dilation apart:
// to those around it, and near an end to the outermost kernel_size ones. Where a dimension is
// causal it attends to itself and to the kernel_size - 1 before it, as far as there are any.
//
//   result = softmax(scale * query key^T) value, over the neighbors; scale: 1 / sqrt(D) if absent
//
// The result is cut as the query. Cut lines and columns fetch the neighbors' halos of key and
// value, once each way; heads and batches that are cut send nothing; D is made whole. A plain
// tensor among sharded ones counts as Replicate. Memory: kernel_size (its product on a plane) times
// that of key and value.
//
// Gradients: of all three, of any order. Threads and order: all ranks of the mesh call alike.
// Errors: c10::ValueError, before anything is sent: shapes, a window that does not fit its
// dimension.
//
// PhysicsNeMo: natten.functional.na1d and na2d on ShardTensors.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"

namespace meshrun {

// One element for each dimension.
struct Neighborhood {
  std::vector<int64_t> kernel_size;
  std::vector<int64_t> dilation = {};  // 1 where absent
  std::vector<bool> is_causal = {};    // false where absent
  std::optional<double> scale = {};
};

at::Tensor neighborhood_attention(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const Neighborhood& neighborhood);

}  // namespace meshrun
