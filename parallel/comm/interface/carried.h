// Tensors in a dtype that every c10d backend carries: `carried` for calls that only move them,
// `summable` for sums.
//
// NCCL and Gloo know neither 16-bit integers nor unsigned ones of more than 8 bits, nor all numbers
// of 8-bit floating point, nor, in most calls, complex numbers. A view of another dtype with
// elements of the same size has the same bits.
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
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fnuz:
    case at::kFloat8_e5m2fnuz:
    case at::kFloat8_e8m0fnu:
      return tensor.view(at::kByte);
    default:
      return tensor.is_complex() && !tensor.is_conj() ? at::view_as_real(tensor) : tensor;
  }
}

// What a backend can sum, for a strided tensor without lazy conjugation: itself; complex numbers as
// a view of pairs; int16 as a copy in int32, since sums in int32 have the same last 16 bits. The
// caller writes that copy back.
inline at::Tensor summable(const at::Tensor& tensor) {
  if (tensor.is_complex()) return at::view_as_real(tensor);
  return tensor.scalar_type() == at::kShort ? tensor.to(at::kInt) : tensor;
}

}  // namespace meshrun
