// Forward-mode differentiation by dual numbers. Operators below autograd have it by LibTorch's
// formulas, on sharded tangents. What runs above autograd makes its graph of local tensors, which
// have no tangent: it would be lost, and count as zero, without a word. (torch.func.jvp keeps
// tangents aside, so that they are operands like others.)
//
// Internal to parallel/shard. Threads: any.
#pragma once

#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"

namespace meshrun {

[[noreturn]] void refuse_tangent(const char* operation);

inline bool has_tangent(const at::Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

// c10::NotImplementedError where `tensor` has a tangent.
inline void check_no_tangent(const at::Tensor& tensor, const char* operation) {
  if (has_tangent(tensor)) refuse_tangent(operation);
}

// Whether a result of an operand with a tangent has none, and is of a type that has; of several
// results the first.
inline bool loses_tangent(const at::Tensor& result) {
  const bool is_differentiable =
      result.defined() && (result.is_floating_point() || result.is_complex());
  return is_differentiable && !has_tangent(result);
}
template <typename... Rest>
bool loses_tangent(const std::tuple<at::Tensor, Rest...>& results) {
  return loses_tangent(std::get<0>(results));
}
inline bool loses_tangent(const std::vector<at::Tensor>& results) {
  return !results.empty() && loses_tangent(results.front());
}
template <typename Other>
bool loses_tangent(const Other& /*no tensor*/) {
  return false;
}

}  // namespace meshrun
