#include "parallel/collectives/gather_v.h"

#include "parallel/collectives/differentiable.h"

namespace meshrun {

at::Tensor gather_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim, IntArgument dst,
                    const GroupArgument& group) {
  return differentiable_gather(tensor, make_gather(tensor, sizes, dim, dst, group));
}

AsyncTensor gather_v_async(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                           IntArgument dst, const GroupArgument& group) {
  const ExchangePtr exchange = make_gather(tensor, sizes, dim, dst, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable_gather(tensor, exchange, work); });
}

}  // namespace meshrun
