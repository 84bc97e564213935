// The `dim` of functions that talk to nobody, so that a wrong one is an exception here alone.
// Internal to parallel/collectives.
#pragma once

#include <cstdint>
#include <string>

#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/call/pieces.h"

namespace meshrun {

// Counted from the front. c10::ValueError: an undefined tensor. c10::IndexError: dim out of range.
inline int64_t local_dim(const char* caller, const at::Tensor& tensor, int64_t dim) {
  TORCH_CHECK_VALUE(tensor.defined(), caller, ": the tensor is undefined");
  const std::string problem = wrap_dim("dim", dim, tensor.dim());
  TORCH_CHECK_INDEX(problem.empty(), caller, ": ", problem);
  return dim;
}

}  // namespace meshrun
