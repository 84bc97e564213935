// How a tensor is cut into pieces, one for each rank, along one dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ATen/core/Tensor.h"
#include "c10/util/SmallVector.h"
#include "parallel/base/extents.h"

namespace meshrun {

using Extents = c10::SmallVector<int64_t, 8>;

struct Cut {
  int64_t dim = 0;  // counts from the front
  Extents sizes;    // by rank

  int64_t total() const { return total_extent(sizes); }
  int64_t of(int rank) const { return sizes[static_cast<size_t>(rank)]; }
  // Where the piece of `rank` begins.
  int64_t begin(int rank) const {
    return total_extent(std::span<const int64_t>(sizes).first(static_cast<size_t>(rank)));
  }
};

// Elements of a slice of extent 1 along `dim`, which counts from the front.
inline int64_t slice_elements(const at::Tensor& tensor, int64_t dim) {
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements *= d == dim ? 1 : tensor.size(d);
  return elements;
}

}  // namespace meshrun
