// Attention of a piece of queries to blocks of keys, one block after the other, on this rank alone.
//
// Shapes: query (B, H, L, E), key (B, Hk, S, E), value (B, Hk, S, Ev); H is a multiple of Hk, and
// query head h attends to key head h / (H / Hk). Mask: (B or 1, H or 1, L or 1, S or 1), added to
// the scores. All in the accumulating dtype (float32, or float64), which sums are kept in, too.
//
// A tile is computed by one of LibTorch's fused kernels (fused_attention.h), or where none computes
// it by products of matrices (tile_products.h): dropout, a mask whose gradient is wanted, a value
// whose extent is not the key's, on GPUs any mask. They take as many batches, heads and rows of
// queries at a time as have at most most_scores() scores, or one row of a head that has more; so
// memory grows as the block does either way. So does a fused kernel that needs the triangle of a
// mask.
//
// No gradients are recorded. Threads: one at a time. Errors: LibTorch's, on operands that do not
// fit.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"
#include "parallel/shard/attention/attention_arguments.h"
#include "parallel/shard/attention/attention_plan.h"
#include "parallel/shard/attention/tile_products.h"

namespace meshrun {

// A query piece and one block.
struct BlockOperands {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask;  // columns of this block
  double scale = 1;
  const AttentionDropout* dropout = nullptr;
  int64_t first_key = 0;  // of this block in the whole sequence, for dropout
  bool wants_mask_gradient = false;
  at::ScalarType dtype = at::kFloat;  // in which they came
};

// 2^24 at first.
int64_t most_scores();
void set_most_scores(int64_t count);

// The softmax-weighted values of all blocks so far, and the logarithm of the weights' sum. Rows
// that have seen no key: zeros, as LibTorch gives for rows without an allowed key, and -inf.
class RunningAttention {
 public:
  // For queries (B, H, L, E) and values of extent Ev.
  RunningAttention(const at::Tensor& query, int64_t value_extent);

  void add(const AttentionTile& tile, const BlockOperands& operands);
  const at::Tensor& output() const { return output_; }        // (B, H, L, Ev)
  const at::Tensor& logsumexp() const { return logsumexp_; }  // (B, H, L)

 private:
  at::Tensor output_;
  at::Tensor logsumexp_;
};

// Sums of the tiles' gradients, in the operands' shapes; mask: undefined unless wanted.
struct BlockGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor mask;
};

// Adds one tile's part. grad_output and output: (B, H, L, Ev), of all blocks together; logsumexp:
// of all blocks, and finite (finite_logsumexp).
void add_gradients(const AttentionTile& tile, const BlockOperands& operands,
                   const at::Tensor& grad_output, const at::Tensor& output,
                   const at::Tensor& logsumexp, BlockGradients& sums);

}  // namespace meshrun
