// Tensors in a dtype that every c10d backend carries, for calls that only move them.
//
// NCCL and Gloo know neither 16-bit integers nor unsigned ones of more than 8 bits, nor, in most
// calls, complex numbers. A view of another dtype with elements of the same size has the same bits.
//
// Threads: any. Errors: none.
#pragma once

#include "ATen/core/Tensor.h"
#include "ATen/ops/view_as_real.h"

namespace meshrun {

// The tensor itself, or a view of its memory. Not for sums.
inline at::Tensor carried(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return tensor;
  switch (tensor.scalar_type()) {
    case at::kShort:
    case at::kUInt16:
      return tensor.view(at::kHalf);
    case at::kUInt32:
      return tensor.view(at::kInt);
    case at::kUInt64:
      return tensor.view(at::kLong);
    default:
      return tensor.is_complex() && !tensor.is_conj() ? at::view_as_real(tensor) : tensor;
  }
}

}  // namespace meshrun
