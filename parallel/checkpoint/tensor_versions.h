// Tensors, and whether one of them has been written since a moment, by LibTorch's version counters.
//
// Not seen: what an operator writes without counting (batch_norm does so with its running
// statistics), inference tensors, and writes through data() or data_ptr(), as in LibTorch's SGD.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace meshrun {

// 0 for a tensor that has no counter.
inline int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

class TensorVersions {
 public:
  void add(std::string name, at::Tensor tensor) {
    entries_.push_back({std::move(name), std::move(tensor), 0});
  }
  void clear() { entries_.clear(); }
  // This is the moment.
  void record() {
    for (Entry& entry : entries_) entry.version = version_of(entry.tensor);
  }
  // The first tensor that was written since; empty: none.
  std::string written() const {
    for (const Entry& entry : entries_) {
      if (version_of(entry.tensor) != entry.version) return entry.name;
    }
    return "";
  }
  // Digest of the bits of all tensors; reads all of them.
  int64_t digest() const;

 private:
  struct Entry {
    std::string name;
    at::Tensor tensor;
    int64_t version;
  };
  std::vector<Entry> entries_;
};

// Digest of a tensor's bits, on any device.
int64_t digest_of_bits(const at::Tensor& tensor);

}  // namespace meshrun
