#include "core/checkpoint/box_runs.h"

#include <cstddef>

namespace meshrun {
namespace {

// The first of `count` numbers for which `is_behind` holds, as it does for all that follow it.
template <typename IsBehind>
uint64_t FirstOf(uint64_t count, const IsBehind& is_behind) {
  uint64_t low = 0;
  uint64_t high = count;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (is_behind(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

}  // namespace

BoxRuns::BoxRuns(const std::vector<int64_t>& shape, const std::vector<int64_t>& begin,
                 const std::vector<int64_t>& sizes, uint64_t unit)
    : length_(unit) {
  // Trailing dimensions that the box has whole, and the one before them, make a run.
  uint64_t stride = unit;
  bool is_full = true;
  for (size_t d = shape.size(); d-- > 0;) {
    const auto size = static_cast<uint64_t>(sizes[d]);
    first_ += static_cast<uint64_t>(begin[d]) * stride;
    if (is_full) {
      length_ *= size;
      is_full = sizes[d] == shape[d];
    } else {
      outer_sizes_.push_back(size);
      outer_strides_.push_back(stride);
    }
    stride *= static_cast<uint64_t>(shape[d]);
  }
  count_ = length_ == 0 ? 0 : 1;
  for (const uint64_t size : outer_sizes_) count_ *= size;
}

uint64_t BoxRuns::Place(uint64_t run) const {
  uint64_t place = first_;
  // The innermost dimension is the first here.
  for (size_t k = 0; k < outer_sizes_.size(); ++k) {
    place += run % outer_sizes_[k] * outer_strides_[k];
    run /= outer_sizes_[k];
  }
  return place;
}

uint64_t BoxRuns::FirstFrom(uint64_t place) const {
  return FirstOf(count_, [&](uint64_t run) { return Place(run) >= place; });
}

uint64_t BoxRuns::FirstEndingAfter(uint64_t place) const {
  return FirstOf(count_, [&](uint64_t run) { return Place(run) + length_ > place; });
}

}  // namespace meshrun
