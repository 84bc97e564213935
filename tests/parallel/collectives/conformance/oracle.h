// What one process computes: the contents of every rank's tensors, and their sums in rank order.
//
// Pure functions, equal on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/ScalarType.h"

namespace meshrun {

// What `rank` holds in its tensor number `salt`. Sums of the floats depend on the order; those of
// float16 stay finite in worlds of some ranks.
at::Tensor content(int rank, int64_t salt, at::IntArrayRef shape, at::ScalarType type);

// One after the other, in rank order. float16 and bfloat16 as float32, rounded once, or in their
// own dtype; bool: whether any is true. Differentiable.
at::Tensor sum_in_rank_order(const std::vector<at::Tensor>& of_ranks, bool use_fp32 = true);

// |actual - expected| / |expected|, in float64; the numerator alone where `expected` is 0.
double relative_l2(const at::Tensor& actual, const at::Tensor& expected);

}  // namespace meshrun
