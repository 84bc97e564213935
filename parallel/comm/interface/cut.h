// How a tensor is cut into pieces, one for each rank, along one dimension. Without LibTorch's
// libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "c10/util/SmallVector.h"

namespace meshrun {

using Extents = c10::SmallVector<int64_t, 8>;

struct Cut {
  int64_t dim = 0;  // counts from the front
  Extents sizes;    // by rank

  int64_t total() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }
  int64_t of(int rank) const { return sizes[static_cast<size_t>(rank)]; }
};

}  // namespace meshrun
