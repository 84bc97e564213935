// A box of a row-major tensor as equal runs: parts of the box that lie in one piece in the tensor,
// numbered in the order of both. Pure; no errors.
#pragma once

#include <cstdint>
#include <vector>

namespace meshrun {

class BoxRuns {
 public:
  // Places and lengths are in units of which an element has `unit`: 1 for elements, an element's
  // bytes for bytes. Requires that the box is inside and the tensor's units do not overflow.
  BoxRuns(const std::vector<int64_t>& shape, const std::vector<int64_t>& begin,
          const std::vector<int64_t>& sizes, uint64_t unit = 1);

  // 0 for a box without elements.
  uint64_t count() const { return count_; }
  // All have the same.
  uint64_t length() const { return length_; }
  // Where a run begins in the tensor. It grows with `run`.
  uint64_t Place(uint64_t run) const;
  // The first run that begins at `place` or later; count() if none does.
  uint64_t FirstFrom(uint64_t place) const;
  // The first run that ends behind `place`; count() if none does.
  uint64_t FirstEndingAfter(uint64_t place) const;

 private:
  std::vector<uint64_t> outer_sizes_;    // of the dimensions that number the runs
  std::vector<uint64_t> outer_strides_;  // theirs, in units
  uint64_t first_ = 0;
  uint64_t length_ = 0;
  uint64_t count_ = 0;
};

}  // namespace meshrun
