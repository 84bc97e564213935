// A tensor as torch keeps it: any strides over a storage that several tensors may share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/checkpoint/file_region.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

struct StridedTensor {
  // What a TensorSource tells: see there for complex128, which is one element of 16 bytes here.
  TensorInfo info;
  FileRegion storage;
  uint64_t element_bytes = 0;
  // Elements; the three together stay within the storage.
  int64_t offset = 0;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  // Views of conj() and of its parts keep the storage and change signs: of an element that is one
  // number, or of its real and its imaginary part.
  bool negates_first = false;
  bool negates_second = false;
};

// DATA_LOSS unless the tensor stays within its storage. `name` is the subject of the text.
absl::Status CheckStrides(const StridedTensor& tensor, const std::string& name);

// Fills `to` with the row-major bytes from `begin` on. Requires that the tensor has them and passes
// CheckStrides(). Memory: at most 1 MiB.
absl::Status ReadStrided(const StridedTensor& tensor, uint64_t begin, std::span<char> to);

}  // namespace meshrun
