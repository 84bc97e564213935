// Elements that equal a value which was reduced of them, an extreme or a median; NaN equals NaN.
//
// Internal to parallel/shard/operators.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

at::Tensor is_at(const at::Tensor& elements, const at::Tensor& value);

// The gradient of this rank's elements where that of the value, reduced over `dims`, is `gradient`:
// the equal elements of all ranks share it evenly. `value` and `gradient` keep the reduced
// dimensions, or all are reduced. Differentiable; all ranks of the mesh call alike.
at::Tensor shared_among_equal(const at::Tensor& gradient, const at::Tensor& elements,
                              const at::Tensor& value, const SpecPtr& spec,
                              const std::vector<int64_t>& dims);

}  // namespace meshrun
