// Scaled dot-product attention over a sequence that is cut among the ranks of a group.
//
//   ring_attention             queries, keys and values cut: K and V travel round the ring, the
//                              next block while the present one is computed
//   merged_attention           queries whole on every rank, keys and values cut: the ranks' results
//                              are merged by their logsumexp
//   whole_keys_attention       queries cut, keys and values whole: nothing moves
//
// Each equals at::scaled_dot_product_attention of the whole tensors: uneven and empty pieces,
// causal (by the index in the whole sequence), masks, grouped queries. A row without an allowed key
// gives zeros, as LibTorch does. A rank holds at most two blocks of keys beside its own, and the
// scores of some rows of queries at most (block_attention.h): memory grows as the pieces do.
//
// Shapes: query (..., H, L, E), key (..., Hk, S, E), value (..., Hk, S, Ev), L and S of this rank;
// result (..., H, L, Ev) in the inputs' dtype. Dtypes: floating; products and sums in float32
// (float64 for float64). attn_mask: this rank's queries by the keys of all ranks, or what
// broadcasts to that. Sizes are in rank order, and all ranks give the same.
//
// Backward, exact; on the CPU the same in every run (fused_attention.h has what holds for GPUs).
// ring_attention: K and V travel again, their gradients follow one step behind and return to their
// owner; `attn_mask` gets the gradient of this rank's part. merged_attention: the result's gradient
// is the same on all ranks; that of the query is the sum over ranks, the same on all.
// whole_keys_attention: the gradients of key and value are this rank's part, which the caller sums.
// No second derivatives: NotImplementedError.
//
// On the wire forward: K and V in their dtype, each block as far as it is needed; causal attention
// sends none to ranks that see none of it. Backward: the same, and dK and dV in the accumulating
// dtype.
//
// Threads and order: those of c10d::Backend; a backward runs on all ranks or on none. Errors, on
// all ranks: CollectiveArgumentError for a wrong argument, CollectiveMismatchError where ranks
// differ.
//
// PhysicsNeMo: ring_sdpa of domain_parallel.shard_utils.attention_patches.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/manager/group_argument.h"
#include "parallel/shard/attention/attention_arguments.h"

namespace meshrun {

at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const std::vector<int64_t>& query_sizes,
                          const std::vector<int64_t>& key_sizes,
                          const AttentionOptions& options = {}, const GroupArgument& group = {});

at::Tensor merged_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const std::vector<int64_t>& key_sizes,
                            const AttentionOptions& options = {}, const GroupArgument& group = {});

// options.first_query: of this rank's.
at::Tensor whole_keys_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, const AttentionOptions& options = {});

}  // namespace meshrun
