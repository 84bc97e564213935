// The contents of every rank's tensors; tensor_oracle.h has their sums. Pure, equal on every rank.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"
#include "tests/parallel/support/tensor_oracle.h"

namespace meshrun {

// What `rank` holds in its tensor number `salt`. Sums of the floats depend on the order; those of
// float16 stay finite in worlds of some ranks.
at::Tensor content(int rank, int64_t salt, at::IntArrayRef shape, at::ScalarType type);

}  // namespace meshrun
