// Rows of a cut dimension in an order that all ranks know: what flip, roll, repeat and index_select
// do along it. Each row travels once to each rank that needs it, and nothing else does.
//
// Internal to parallel/shard/operators; above autograd: made of differentiable operators. All ranks
// of the mesh call alike.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/layout/shard_layout.h"
#include "parallel/shard/tensor/shard_mesh.h"

namespace meshrun {

// `local`: this rank's part of a tensor whose dimension `dim` is cut as `from` says. The result:
// its part of the tensor with rows rows[0], rows[1], ... of it, cut as `to` says, on the same axes.
at::Tensor exchange_rows(const at::Tensor& local, const ShardMesh::Ptr& mesh, int64_t dim,
                         const DimCut& from, const std::vector<int64_t>& rows, const DimCut& to);

}  // namespace meshrun
