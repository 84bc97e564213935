#include "parallel/shard/random/box_runs.h"

#include <algorithm>

namespace meshrun {

BoxRuns::BoxRuns(std::span<const int64_t> global_sizes, std::span<const int64_t> offsets,
                 std::span<const int64_t> sizes) {
  uint64_t pitch = 1;
  bool in_run = true;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    origin_ += static_cast<uint64_t>(offsets[dim]) * pitch;
    num_elements_ *= sizes[dim];
    if (in_run) {
      run_ *= sizes[dim];
      in_run = sizes[dim] == global_sizes[dim];
    } else {
      outer_.push_back({sizes[dim], pitch});
    }
    pitch *= static_cast<uint64_t>(global_sizes[dim]);
  }
  std::reverse(outer_.begin(), outer_.end());
}

void BoxRuns::visit(int64_t begin, int64_t end,
                    const std::function<void(int64_t, uint64_t, int64_t)>& visit) const {
  while (begin < end) {
    int64_t row = begin / run_;
    const int64_t within = begin % run_;
    uint64_t global = origin_ + static_cast<uint64_t>(within);
    for (size_t dim = outer_.size(); dim-- > 0;) {
      global += static_cast<uint64_t>(row % outer_[dim].size) * outer_[dim].pitch;
      row /= outer_[dim].size;
    }
    const int64_t length = std::min(run_ - within, end - begin);
    visit(begin, global, length);
    begin += length;
  }
}

}  // namespace meshrun
