// Attention's tensors as its kernels take them, and what is wrong with them.
//
// LibTorch's shapes: query (..., H, L, E), key (..., Hk, S, E), value (..., Hk, S, Ev), or without
// heads (L, E), of two or more dims. Leading dims broadcast; heads do, too, or are grouped
// (enable_gqa). The mask is bool (false: not allowed) or floating, and broadcasts to (..., H, L, S
// of all ranks).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/shard/random/random_operation.h"

namespace meshrun {

// Weights are dropped by their place in the whole tensor of scores (counter_random.h), so every cut
// of it drops the same ones.
struct AttentionDropout {
  double probability = 0;
  RandomOperation operation;
  // Sizes of all ranks' scores (batch, heads, queries, keys), and the offsets in them at which this
  // rank's batches, heads and queries begin.
  std::array<int64_t, 4> global_sizes = {};
  std::array<int64_t, 3> offsets = {};
};

struct AttentionOptions {
  std::optional<at::Tensor> attn_mask = std::nullopt;
  BoolArgument is_causal = false;
  std::optional<double> scale = std::nullopt;  // absent: 1 / sqrt(E)
  BoolArgument enable_gqa = false;
  // For is_causal: where the group's queries begin in the whole sequence, if other groups hold the
  // rest of them.
  IntArgument first_query = 0;
  std::optional<AttentionDropout> dropout = std::nullopt;
};

// The tensors in four dims. Views and reshapes that autograd records, so that it undoes them.
// Batches that keys and values have once for all of the query's become heads of the query, which
// share their keys: these are neither repeated nor sent repeatedly. With dropout they are repeated,
// since a weight's place in the whole tensor of scores says whether it is dropped.
struct AttentionArguments {
  std::string problem;  // empty: none; else nothing below holds
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;  // additive or bool; see block_attention.h
  double scale = 1;
  std::vector<int64_t> output_shape;  // (..., H, L, Ev)
  // Where batches became heads: the result's dims before they were joined to four, and their order
  // in output_shape.
  std::vector<int64_t> parted_shape;
  std::vector<int64_t> order;

  // The result in four dims as output_shape.
  at::Tensor restored(const at::Tensor& result) const;
};

// `num_keys`: of all ranks. The key's own extent is checked by the caller.
AttentionArguments read_attention(const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const AttentionOptions& options,
                                  int64_t num_keys);

// float64 for float64, else float32.
at::ScalarType accumulating_dtype(at::ScalarType dtype);
// -inf for false; a floating mask in `dtype`.
std::optional<at::Tensor> additive_mask(const std::optional<at::Tensor>& mask,
                                        at::ScalarType dtype);
// The columns of one block.
std::optional<at::Tensor> mask_columns(const std::optional<at::Tensor>& mask, int64_t begin,
                                       int64_t size);

// The gradients as the result of a node that cannot be differentiated again, where autograd records
// (create_graph): a second derivative then raises and is not silently wrong.
std::vector<at::Tensor> once_differentiable(std::vector<at::Tensor> gradients,
                                            const at::Tensor& cotangent);

}  // namespace meshrun
