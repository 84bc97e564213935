// Rows of a cut dimension. exchange_rows(): in an order that all ranks know, as flip, roll, repeat
// and index_select have it. RowRoute: to places that each rank knows of its own rows alone, as
// index_add and scatter_add have them. Each row travels once to each rank that needs it, and
// nothing else does.
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

// The way of rows to the ranks whose pieces of a dimension they are for. Making one tells every
// rank how many rows it gets, which waits for the device.
class RowRoute {
 public:
  // `rows`: int64 [n], in [0, extent) of the dimension that is cut as `to` says; of this rank.
  RowRoute(const at::Tensor& rows, const ShardMesh::Ptr& mesh, const DimCut& to);

  // `tensor` has one slice a row along `dim`. The result: the slices for this rank's piece, in the
  // order of the pieces that they come from, and of their rows there. Differentiable to any order.
  at::Tensor send(const at::Tensor& tensor, int64_t dim) const;

 private:
  at::Tensor order_;
  std::vector<int64_t> send_sizes_;  // by ranks of the group
  std::vector<int64_t> receive_sizes_;
  ShardMesh::Group group_;
};

}  // namespace meshrun
