// The runs of a box within a global tensor: what is contiguous in both, in the box's order.
//
// Pure, without LibTorch. Sizes and offsets as in counter_random.h; the box lies within the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace meshrun {

class BoxRuns {
 public:
  BoxRuns(std::span<const int64_t> global_sizes, std::span<const int64_t> offsets,
          std::span<const int64_t> sizes);

  int64_t num_elements() const { return num_elements_; }
  // Calls visit(local index, global index, length) for the elements [begin, end) of the box.
  void visit(int64_t begin, int64_t end,
             const std::function<void(int64_t, uint64_t, int64_t)>& visit) const;

 private:
  struct Dim {
    int64_t size;    // of the box
    uint64_t pitch;  // in the global tensor
  };
  std::vector<Dim> outer_;  // beside the run, outermost first
  uint64_t origin_ = 0;     // global index of the box's first element
  int64_t run_ = 1;
  int64_t num_elements_ = 1;
};

}  // namespace meshrun
