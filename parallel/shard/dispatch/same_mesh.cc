#include "parallel/shard/dispatch/same_mesh.h"

#include "fmt/format.h"

namespace meshrun {

void SameMesh::add(const at::Tensor& tensor) {
  const ShardTensorImpl* impl = shard_impl(tensor);
  if (impl == nullptr) return;
  const ShardMesh::Ptr& own = impl->spec()->mesh();
  if (mesh_ == nullptr) mesh_ = &own;
  if (*mesh_ != own) {
    throw ShardTensorError(fmt::format("{} got sharded tensors of two meshes: {} and {}",
                                       operation_, (*mesh_)->device_mesh().to_string(),
                                       own->device_mesh().to_string()));
  }
}

const ShardMesh::Ptr& SameMesh::get() const {
  if (mesh_ == nullptr) {
    throw ShardTensorError(fmt::format("{} got no sharded tensor", operation_));
  }
  return *mesh_;
}

ShardMesh::Ptr mesh_of(std::initializer_list<const at::Tensor*> tensors, const char* operation) {
  SameMesh mesh(operation);
  for (const at::Tensor* tensor : tensors) mesh.add(*tensor);
  return mesh.get();
}

ShardMesh::Ptr mesh_of(at::ArrayRef<at::Tensor> tensors, const char* operation) {
  SameMesh mesh(operation);
  for (const at::Tensor& tensor : tensors) mesh.add(tensor);
  return mesh.get();
}

}  // namespace meshrun
