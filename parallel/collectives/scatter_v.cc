#include "parallel/collectives/scatter_v.h"

#include "parallel/collectives/differentiable.h"

namespace meshrun {

at::Tensor scatter_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim, IntArgument src,
                     const GroupArgument& group) {
  return differentiable_scatter(tensor, make_scatter(tensor, sizes, dim, src, group));
}

AsyncTensor scatter_v_async(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                            IntArgument src, const GroupArgument& group) {
  const ExchangePtr exchange = make_scatter(tensor, sizes, dim, src, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable_scatter(tensor, exchange, work); });
}

}  // namespace meshrun
