// What one process computes for all ranks, as tensors: the oracle of collectives and of trainings.
// reduction_oracle.h has the same for bytes, without LibTorch. Pure functions, equal on all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

namespace meshrun {

// One after the other, in rank order. float16 and bfloat16 as float32, rounded once, or in their
// own dtype; bool: whether any is true. `divisor`: of an average, divided once, before the
// rounding. Differentiable.
at::Tensor sum_in_rank_order(const std::vector<at::Tensor>& of_ranks, bool use_fp32 = true,
                             int64_t divisor = 1);

// |actual - expected| / |expected|, in float64; the numerator alone where `expected` is 0, and
// infinity where the shapes differ.
double relative_l2(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace meshrun
