// The sharded tensors of one call are on one mesh.
//
//   const ShardMesh::Ptr mesh = mesh_of({&self, &index}, "gather");
//
// Plain and undefined tensors have no mesh. ShardTensorError: two meshes meet, or no tensor is
// sharded. fallback.h has the same for the arguments on a stack. Internal to parallel/shard.
// Threads: any.
#pragma once

#include <initializer_list>

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

// For tensors that are not in one list, and live on.
class SameMesh {
 public:
  explicit SameMesh(const char* operation) : operation_(operation) {}

  // Raises if the mesh of `tensor` is not that of the former ones.
  void add(const at::Tensor& tensor);
  // Raises if no tensor was sharded.
  const ShardMesh::Ptr& get() const;

 private:
  const char* operation_;
  const ShardMesh::Ptr* mesh_ = nullptr;  // of the first one, which its spec keeps
};

ShardMesh::Ptr mesh_of(std::initializer_list<const at::Tensor*> tensors, const char* operation);
ShardMesh::Ptr mesh_of(at::ArrayRef<at::Tensor> tensors, const char* operation);

}  // namespace meshrun
