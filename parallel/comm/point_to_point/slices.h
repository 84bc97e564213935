// The slices of a tensor along one dimension, as bytes that a backend sends from or receives into.
//
// A slice that lies contiguous is used where it is, without an operator of ATen's. Others share one
// buffer, which pack() fills and unpack() empties, each in one launch on a GPU (piece_kernels.h).
//
// Internal to point_to_point/. Threads: any. Errors: ATen's.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"
#include "parallel/comm/interface/cut.h"
#include "parallel/kernels/piece_kernels.h"

namespace meshrun::point_to_point {

// A view of `count` elements of `type` in a tensor's memory. It begins `begin` elements of `type`
// after the tensor's first element. It is made without an operator, so it costs one allocation, and
// it has no gradient and no version counter of its own.
at::Tensor memory_view(const at::Tensor& tensor, c10::ScalarType type, int64_t begin,
                       int64_t count);

// Whether the memory from the first element on is the values, in row-major order.
bool can_travel(const at::Tensor& tensor);

// Slice `rank`, as a view.
at::Tensor slice_of(const at::Tensor& tensor, const Cut& cut, int rank);

// A rank's own slice, which may be there already: into another tensor, and into bytes.
void copy_own(const at::Tensor& output, const at::Tensor& input);
void copy_own_into_bytes(const at::Tensor& bytes, const at::Tensor& input);

struct Slices {
  enum class Place : uint8_t {
    kWhereTheyLie,  // each in the tensor, or in the buffer
    kOneBlock,      // all in the tensor or all in the buffer, one after another without gaps
  };

  // Without slice `skipped`; -1: all.
  Slices(const at::Tensor& tensor, const Cut& cut, int skipped, Place place = Place::kWhereTheyLie);

  void pack() const {
    if (!packed.empty()) pack_pieces(buffer, tensor, dim, packed);
  }
  void unpack() const {
    if (!packed.empty()) unpack_pieces(tensor, dim, buffer, packed);
  }

  at::Tensor tensor;
  int64_t dim;
  std::vector<at::Tensor> bytes;  // by rank; undefined: nothing travels
  at::Tensor block;               // kOneBlock: begins with the first slice
  at::Tensor buffer;              // undefined where nothing is packed
  std::vector<PackedPiece> packed;
};

// A tensor that travels whole.
Slices whole(const at::Tensor& tensor, int64_t dim);

}  // namespace meshrun::point_to_point
