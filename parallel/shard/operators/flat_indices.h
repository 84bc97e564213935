// Row-major indices into the last dimensions of a tensor, and their places along each.
#pragma once

#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/div.h"

namespace meshrun {

inline std::vector<at::Tensor> unravel(at::Tensor indices, at::IntArrayRef shape) {
  std::vector<at::Tensor> places(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    places[i] = indices.remainder(shape[i]);
    indices = at::div(indices, shape[i], "floor");
  }
  return places;
}

inline at::Tensor ravel(const std::vector<at::Tensor>& places, at::IntArrayRef shape) {
  at::Tensor indices = places[0];
  for (size_t i = 1; i < places.size(); ++i) indices = indices * shape[i] + places[i];
  return indices;
}

}  // namespace meshrun
