// A local tensor and the layout that it has, while views are made of both.
//
// Internal to parallel/shard/operators; below autograd.
#pragma once

#include <cstdint>
#include <optional>

#include "ATen/core/Tensor.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/view_layout.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

struct Part {
  at::Tensor local;
  ShardLayout layout;
};

// One index of `dim`, without `dim`. Where it is cut, the rank that has the index gets a view, the
// others zeros.
Part select_part(const ShardMesh::Ptr& mesh, Part part, int64_t dim, int64_t index);
Part slice_part(const ShardMesh::Ptr& mesh, Part part, int64_t dim, const SliceRange& range);

// As LibTorch reads slice()'s arguments. Raises c10::ValueError where the step is not positive.
SliceRange slice_range(int64_t extent, std::optional<int64_t> start, std::optional<int64_t> end,
                       int64_t step);

// What slice and select move, for the table.
inline const Movement kSliceMovement = {
    "any", "nothing: each rank keeps what it has of the range, which may be uneven",
    "nothing; of a cut dimension, a gradient that lies elsewhere moves to the tensor's layout"};
inline const Movement kSelectMovement = {
    "any", "nothing: one index of a cut dimension is Partial(sum)",
    "nothing; of a cut dimension, a gradient that lies elsewhere moves to the tensor's layout"};

}  // namespace meshrun
