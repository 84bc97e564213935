// Operands of an operator, sharded or plain, brought to where it wants them; below autograd.
//
// Internal to parallel/shard/operators. All ranks of the mesh call alike.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

// The mesh of the sharded ones among `tensors`. Raises ShardTensorError if none is sharded, if two
// meshes meet, or if check_promotion() refuses a plain one.
ShardMesh::Ptr mesh_of_operands(at::ArrayRef<at::Tensor> tensors, const char* operation);
// A plain tensor is Replicate on `mesh`.
SpecPtr spec_on(const at::Tensor& tensor, const ShardMesh::Ptr& mesh);
// The local tensor of `tensor`, redistributed to `spec`, whose mesh and global shape it has.
at::Tensor local_as(const at::Tensor& tensor, const SpecPtr& spec);

}  // namespace meshrun
