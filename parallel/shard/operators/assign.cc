#include "parallel/shard/operators/assign.h"

#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/write_back.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

at::Tensor& assign(at::Tensor& target, const at::Tensor& result) {
  ShardTensorImpl* impl = shard_impl(target);
  if (impl == nullptr) refuse_plain_target("an operator");
  if (target.sizes() == result.sizes()) {
    write_back(target, local_of(result), spec_of(result));
  } else {
    impl->replace(local_of(result).to(target.scalar_type()), spec_of(result));
  }
  return target;
}

}  // namespace meshrun
