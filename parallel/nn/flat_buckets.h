// Tensors that travel together: which bucket each goes into, and where the ranks' slices of a
// bucket cut it. Pure; without LibTorch.
//
//   bucket 0: [ a a a a b b b ]   bucket 1: [ c c ]   slices of 2 ranks: [a a a a | b b b] [c | c]
//
// Threads: any. No errors.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/base/split.h"

namespace meshrun::detail {

struct FlatTensor {
  int64_t numel = 0;
  int64_t element_bytes = 1;
  // Tensors of different kinds (dtypes) share no bucket.
  int64_t kind = 0;
};

struct FlatBucket {
  // By their place in the list, one after another.
  std::vector<int64_t> tensors;
  // Where each begins, and the end: one more than tensors.
  std::vector<int64_t> begins = {0};
  int64_t kind = 0;

  int64_t numel() const { return begins.back(); }
  // The part of the bucket's i-th tensor that rank `rank`'s slice has: elements of the tensor.
  SplitRange piece(int64_t i, int64_t num_ranks, int64_t rank) const;
};

// In the tensors' order; a bucket has at most `bucket_bytes`, or one tensor.
std::vector<FlatBucket> make_flat_buckets(const std::vector<FlatTensor>& tensors,
                                          int64_t bucket_bytes);

}  // namespace meshrun::detail
