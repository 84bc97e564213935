// What reductions share: their dimensions, the layout of their results, and the values of the ranks
// along an axis.
//
// Internal to parallel/shard. All ranks of the mesh call alike.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

// Counted from the front; absent or none: all. A tensor without dimensions has none.
std::vector<int64_t> reduced_dims(at::OptionalIntArrayRef dims, int64_t ndim);

// The layout of a reduction over `dims`; `where_cut`: on the axes that cut one of them.
SpecPtr reduced_spec(const SpecPtr& spec, const std::vector<int64_t>& dims, bool keepdim,
                     const Placement& where_cut);

// How many elements of the whole tensor, and of this rank's part, are reduced into one.
int64_t reduced_count(at::IntArrayRef shape, const std::vector<int64_t>& dims);

// The first reduces every Partial, the second every Partial except sums.
at::Tensor without_summands(const at::Tensor& tensor);
at::Tensor with_sums_only(const at::Tensor& tensor);

// What the ranks along `axis` have, [ranks, ...]. This rank's has its history, so that the gradient
// of what follows is exact where every rank gets the same one.
at::Tensor stacked_along(const at::Tensor& own, const ShardMesh& mesh, int64_t axis);

// `own` of all ranks that have a part of `dims`: `reduce` takes [ranks, ...] and drops the first
// dimension.
at::Tensor combined(at::Tensor own, const SpecPtr& spec, const std::vector<int64_t>& dims,
                    const std::function<at::Tensor(const at::Tensor&)>& reduce);

// Drops dimensions of extent 1.
at::Tensor dropped(const at::Tensor& tensor, const std::vector<int64_t>& dims, bool keepdim);

}  // namespace meshrun
