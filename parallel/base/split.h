// The one split rule of the library: how a dimension is cut into pieces, one per rank.
//
// Pure functions of what every rank knows, without LibTorch. The rule is that of PhysicsNeMo's
// distributed.utils.compute_split_shapes; it differs from torch.chunk (9 in 4 is 2, 2, 2, 3, not
// 3, 3, 3) and pieces may be empty (3 in 4 is 0, 0, 0, 3).
//
// Errors: std::invalid_argument, with the values that were given.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/base/arguments.h"

namespace meshrun {

// Sizes of the `num_chunks` pieces of a dimension of `size`, in rank order; they sum to `size`.
// Every piece but the last has ceil(size / num_chunks) elements, and the last one has the rest. If
// that leaves nothing for the last piece, the others have floor(size / num_chunks) elements.
std::vector<int64_t> compute_split_shapes(IntArgument size, IntArgument num_chunks);

// The half-open range [begin, end) that piece `index` covers.
struct SplitRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

SplitRange split_range(IntArgument size, IntArgument num_chunks, IntArgument index);

}  // namespace meshrun
