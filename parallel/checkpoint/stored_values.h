// A tensor's values as the bytes that a safetensors file has of them: row-major, little-endian. The
// format has no complex128: such a tensor is stored as F64 with a last dimension of 2, its real and
// its imaginary part.
//
// Threads: as tensors. Errors: c10::TypeError for a dtype that the format lacks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/checkpoint/tensor_source.h"

namespace meshrun {

// What a file has of a tensor of this dtype and shape.
TensorInfo stored_info(at::ScalarType dtype, std::vector<int64_t> shape);
inline TensorInfo stored_info(const at::Tensor& tensor) {
  return stored_info(tensor.scalar_type(), tensor.sizes().vec());
}

// Bytes of all elements of a stored tensor.
uint64_t stored_bytes(const TensorInfo& info);

// Raises c10::TypeError for a dtype that LibTorch lacks.
at::ScalarType dtype_of(const TensorInfo& info);

// The values of a plain tensor, without its history. They stay in its own memory, unless it is a
// conjugate or negative view: then they are a copy.
class StoredValues {
 public:
  StoredValues() = default;
  explicit StoredValues(const at::Tensor& tensor);

  bool defined() const { return values_.defined(); }
  // In a dtype that has as many bytes.
  const at::Tensor& values() const { return values_; }
  uint64_t size() const { return bytes_; }
  // All of them, where they lie in the CPU's memory in this order; else null.
  const char* memory() const;
  char* mutable_memory() const;
  // The same as a tensor of bytes, which holds the memory; undefined where they do not lie so.
  at::Tensor bytes() const;
  // Copies the bytes from `from` on. Needs memory for a few MiB at most.
  void read(uint64_t from, std::span<char> to) const;
  // The reverse. Not for a conjugate or negative view, whose values are a copy.
  void write(uint64_t from, std::string_view bytes) const;
  // A number that differs, almost surely, where two ranks have other values. It is the hash of all
  // bytes of a small tensor, and of one cache line of each page of a large one, which costs a
  // fraction of reading it. A change of a few elements of a large tensor may go unseen.
  uint64_t sample() const;

 private:
  at::Tensor values_;
  uint64_t bytes_ = 0;
};

}  // namespace meshrun
