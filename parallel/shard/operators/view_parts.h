// A local tensor and the layout that it has, while views are made of both.
//
// Internal to parallel/shard/operators; below autograd.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "parallel/shard/layout/view_layout.h"
#include "parallel/shard/shard_tensor_impl.h"

namespace meshrun {

struct Part {
  at::Tensor local;
  ShardLayout layout;
};

// One index of `dim`, without `dim`. Where it is cut, the rank that has the index gets a view, the
// others zeros.
Part select_part(const ShardMesh::Ptr& mesh, Part part, int64_t dim, int64_t index);
Part slice_part(const ShardMesh::Ptr& mesh, Part part, int64_t dim, const SliceRange& range);

}  // namespace meshrun
