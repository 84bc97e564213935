#include "parallel/shard/operators/operands.h"

#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/redistribute/redistribute.h"

namespace meshrun {

void check_plain_operands(at::ArrayRef<at::Tensor> tensors, const char* operation) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && !is_shard_tensor(tensor)) check_promotion(tensor, operation);
  }
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
