#include "parallel/shard/operators/operands.h"

#include "fmt/format.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/redistribute/redistribute.h"

namespace meshrun {

ShardMesh::Ptr mesh_of_operands(at::ArrayRef<at::Tensor> tensors, const char* operation) {
  ShardMesh::Ptr mesh;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const ShardTensorImpl* impl = shard_impl(tensor);
    if (impl == nullptr) {
      check_promotion(tensor, operation);
      continue;
    }
    if (!mesh) mesh = impl->spec()->mesh();
    if (mesh != impl->spec()->mesh()) {
      throw ShardTensorError(fmt::format("{} got sharded tensors of two meshes: {} and {}",
                                         operation, mesh->device_mesh().to_string(),
                                         impl->spec()->mesh()->device_mesh().to_string()));
    }
  }
  if (!mesh) throw ShardTensorError(fmt::format("{} got no sharded tensor", operation));
  return mesh;
}

SpecPtr spec_on(const at::Tensor& tensor, const ShardMesh::Ptr& mesh) {
  return is_shard_tensor(tensor) ? spec_of(tensor) : replicated_spec(mesh, tensor.sizes());
}

at::Tensor local_as(const at::Tensor& tensor, const SpecPtr& spec) {
  const ShardTensorImpl* impl = shard_impl(tensor);
  return redistribute_local(impl == nullptr ? tensor : impl->local(), spec_on(tensor, spec->mesh()),
                            spec);
}

}  // namespace meshrun
