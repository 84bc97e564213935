// Bags of a table's rows, as embedding_bag has them, on one rank: sums, means or largest elements.
//
// Internal to parallel/shard/operators; above autograd. All ranks of the mesh call alike.
// Errors: those of lookup.h, and LibTorch's.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

// LibTorch's numbers.
enum BagMode : int64_t { kSumOfBag = 0, kMeanOfBag = 1, kMaxOfBag = 2 };

// Elements of bags, which are numbers of rows of the whole table.
struct OwnBags {
  at::Tensor elements;
  at::Tensor offsets;
  at::Tensor sample_weights;  // of a sum; undefined: none
  bool has_last_offset = false;
  int64_t padding = -1;  // row that does not count; -1: none

  int64_t count() const { return offsets.numel() - (has_last_offset ? 1 : 0); }
};

struct BagsOfRows {
  at::Tensor values;  // with the history of table and samples' weights
  // Where LibTorch has them: the bag of each element, sizes of bags without what does not count,
  // and, of largest elements, their rows in the whole table.
  at::Tensor bag_of;
  at::Tensor sizes;
  at::Tensor rows;
};

// For a table that has all rows.
BagsOfRows bags_of_whole_rows(const at::Tensor& table, const OwnBags& own, int64_t mode);
// For a table with the layout `spec`, of which this rank has a piece of the rows: summands of the
// bags. All ranks along the axes that cut the rows have the same bags. Largest elements are
// all-reduced, and so are their places: the rank that has one is the only one with a summand.
BagsOfRows bags_of_cut_rows(const at::Tensor& local, const SpecPtr& spec, const OwnBags& own,
                            int64_t mode);

}  // namespace meshrun
