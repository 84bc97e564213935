// Operators on each matrix or image of a batch. The dimensions that they work on are whole on every
// rank; batch dimensions stay cut, so a batch that is split over ranks for data parallelism remains
// split.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/shard/dispatch/operator_table.h"

namespace meshrun {

struct BatchwiseRule {
  struct Result {
    int64_t core = 0;       // last dimensions that are no batch
    int64_t batch_of = -1;  // the operand whose batch it has; -1: all operands' broadcast one
  };

  const char* name;
  std::vector<int64_t> operands;  // last dimensions of each that are no batch
  std::vector<Result> results;
  bool solves = false;       // the second operand may be a vector for each matrix
  bool keeps_order = false;  // derivative formulas ask for the order of the factors
  // The first operand is a gradient, and has the batch of the others together. LibTorch's kernel
  // takes one batch alone, says nothing of others, and is called with others by torch.vmap.
  bool of_one_batch = false;
};

// Rows of `family` for those of these operators that LibTorch has. Returns true.
bool register_batchwise(const char* family, const std::vector<BatchwiseRule>& rules);

}  // namespace meshrun
