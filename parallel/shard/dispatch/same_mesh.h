// The sharded tensors of one call are on one mesh.
//
//   ShardMesh::Ptr mesh;
//   for (const at::Tensor& tensor : tensors) require_same_mesh(mesh, tensor, "cat");
//
// Internal to parallel/shard. Threads: any.
#pragma once

#include "ATen/core/Tensor.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

// Where `mesh` is null it becomes that of `tensor`. A plain or undefined tensor has none. Raises
// ShardTensorError where `tensor` is on another mesh.
void require_same_mesh(ShardMesh::Ptr& mesh, const at::Tensor& tensor, const char* operation);

}  // namespace meshrun
