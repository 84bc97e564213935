#include "parallel/shard/dispatch/same_mesh.h"

#include "fmt/format.h"

namespace meshrun {

void require_same_mesh(ShardMesh::Ptr& mesh, const at::Tensor& tensor, const char* operation) {
  const ShardTensorImpl* impl = shard_impl(tensor);
  if (impl == nullptr) return;
  const ShardMesh::Ptr& own = impl->spec()->mesh();
  if (!mesh) mesh = own;
  if (mesh != own) {
    throw ShardTensorError(fmt::format("{} got sharded tensors of two meshes: {} and {}", operation,
                                       mesh->device_mesh().to_string(),
                                       own->device_mesh().to_string()));
  }
}

}  // namespace meshrun
