// What becomes of a layout when its tensor is viewed otherwise, such that every rank views its own
// part. Pure, without LibTorch. Dims count from the front and are in range.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/shard/layout/shard_layout.h"

namespace meshrun {

// start, start + step, ..., below end; 0 <= start, end <= the extent, step >= 1.
struct SliceRange {
  int64_t start = 0;
  int64_t end = 0;
  int64_t step = 1;

  int64_t size() const { return end > start ? (end - start + step - 1) / step : 0; }
  // What of it lies in [offset, offset + extent), as indices from `offset`; start 0 where nothing.
  SliceRange within(int64_t offset, int64_t extent) const;
};

// Dimension i of the result is dims[i] of `layout`.
ShardLayout permuted(const ShardLayout& layout, const std::vector<int64_t>& dims);
// A new whole dimension in front of `dim`.
ShardLayout with_dim(const ShardLayout& layout, int64_t dim, int64_t extent = 1);
// In place of dimension `dim`: whole, of another extent. It is not cut.
ShardLayout with_extent(const ShardLayout& layout, int64_t dim, int64_t extent);
// Without `dim`, at `index` of it. Axes that cut it become Placement::held_by() the ranks that have
// the index.
ShardLayout selected(const ShardLayout& layout, int64_t dim, int64_t index);
// Every rank has what its piece holds of the range.
ShardLayout sliced(const ShardLayout& layout, int64_t dim, const SliceRange& range);
// The inverse: dimension `dim` of `layout` is that range of one with `extent`. Where more than one
// cut would do, the one that is closest to the split rule.
ShardLayout unsliced(const ShardLayout& layout, int64_t dim, const SliceRange& range,
                     int64_t extent);

// The diagonal of dims (dim1, dim2), of which one may be cut; it is the last dimension of the
// result. Raises ShardLayoutError where both are cut.
ShardLayout diagonal(const ShardLayout& layout, int64_t offset, int64_t dim1, int64_t dim2);

// Layout of the same elements in another shape; absent if a rank's part would not be one box. A cut
// survives if it falls between whole rows of the new leading dimension.
std::optional<ShardLayout> reshaped(const ShardLayout& layout, const std::vector<int64_t>& shape);
// The layout to redistribute to before reshaped() to that shape, chosen to move little: an axis
// whose cut does not survive cuts the first of the dimensions that are split or merged, and becomes
// Replicate where that does not survive either.
ShardLayout reshapeable(const ShardLayout& layout, const std::vector<int64_t>& shape);

}  // namespace meshrun
