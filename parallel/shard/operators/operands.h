// Operands of an operator, sharded or plain, brought to where it wants them; below autograd.
//
// Internal to parallel/shard/operators. All ranks of the mesh call alike.
#pragma once

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

// check_promotion() of the plain ones among `tensors`, which may be undefined.
void check_plain_operands(at::ArrayRef<at::Tensor> tensors, const char* operation);
// A plain tensor is Replicate on `mesh`.
SpecPtr spec_on(const at::Tensor& tensor, const ShardMesh::Ptr& mesh);
// The local tensor of `tensor`, redistributed to `spec`, whose mesh and global shape it has.
at::Tensor local_as(const at::Tensor& tensor, const SpecPtr& spec);

}  // namespace meshrun
