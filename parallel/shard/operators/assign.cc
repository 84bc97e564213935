#include "parallel/shard/operators/assign.h"

#include "parallel/shard/dispatch/write_back.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

at::Tensor& assign(at::Tensor& target, const at::Tensor& result) {
  ShardTensorImpl* impl = shard_impl(target);
  if (impl == nullptr) {
    throw ShardTensorError(
        "an operator cannot write a ShardTensor into a plain tensor: make the tensor that is "
        "written "
        "by new_zeros() or zeros_like() of a ShardTensor");
  }
  if (target.sizes() == result.sizes()) {
    write_back(target, local_of(result), spec_of(result));
  } else {
    impl->replace(local_of(result).to(target.scalar_type()), spec_of(result));
  }
  return target;
}

}  // namespace meshrun
