// Count, mean and sum of squared deviations of elements that lie on many ranks, merged as Chan,
// Golub and LeVeque do (1983): a mean far from zero costs no digits, as it does in a sum of
// squares.
//
// Tensors are float32 or float64, without history, and may be empty. Internal to parallel/shard.
// merged(): all ranks of the mesh call alike; one all-gather per axis.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

// Tensors of one shape. Where `count` is 0, `mean` and `squares` are 0 too.
struct Moments {
  at::Tensor count;
  at::Tensor mean;
  at::Tensor squares;  // sums of squared deviations from `mean`
};

// Moments of the elements along `dims`, which stay as extents of 1. Not `centered`: the mean is
// taken as 0. `deviations`: receives the elements minus their mean, in new memory.
Moments moments_of(const at::Tensor& elements, at::IntArrayRef dims, bool centered = true,
                   at::Tensor* deviations = nullptr);

// Moments of the elements of all ranks along these axes.
Moments merged(const Moments& own, const ShardMesh& mesh, const std::vector<int64_t>& axes);

// Combines the moments of channels, [n, channel, 1, ...], into those of groups, [n, group].
Moments grouped(const Moments& channels, const at::Tensor& group_of_channel, int64_t groups);
// [n, group] from the sums of channels; and back, of the shape of `like`.
at::Tensor sum_groups(const at::Tensor& channels, const at::Tensor& group_of_channel,
                      int64_t groups);
at::Tensor spread_groups(const at::Tensor& groups, const at::Tensor& group_of_channel,
                         at::IntArrayRef like);

// The type that moments of such elements have: float64 for float64, else float32.
at::ScalarType moment_type(at::ScalarType elements);

// Axes that cut one of these dimensions.
std::vector<int64_t> axes_that_cut(const ShardTensorSpec& spec, at::IntArrayRef dims);

// Adds in place what ranks along these axes have.
at::Tensor sum_over(at::Tensor own, const ShardMesh& mesh, const std::vector<int64_t>& axes);

}  // namespace meshrun
