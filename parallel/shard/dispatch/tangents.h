// Forward-mode differentiation by dual numbers. Operators below autograd have it by LibTorch's
// formulas, on sharded tangents. What runs above autograd makes its graph of local tensors, which
// have no tangent: it would be lost, and count as zero, without a word. (torch.func.jvp keeps
// tangents aside, so that they are operands like others.)
//
// Internal to parallel/shard. Threads: any.
#pragma once

#include "ATen/core/Tensor.h"

namespace meshrun {

[[noreturn]] void refuse_tangent(const char* operation);

// c10::NotImplementedError where `tensor` has a tangent.
inline void check_no_tangent(const at::Tensor& tensor, const char* operation) {
  if (tensor.defined() && tensor._fw_grad(/*level=*/0).defined()) refuse_tangent(operation);
}

}  // namespace meshrun
