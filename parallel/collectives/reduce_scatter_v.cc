#include "parallel/collectives/reduce_scatter_v.h"

#include "parallel/collectives/differentiable.h"

namespace meshrun {

at::Tensor reduce_scatter_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                            BoolArgument use_fp32, const GroupArgument& group) {
  return differentiable_reduce_scatter(tensor,
                                       make_reduce_scatter(tensor, sizes, dim, use_fp32, group));
}

AsyncTensor reduce_scatter_v_async(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                                   BoolArgument use_fp32, const GroupArgument& group) {
  const ExchangePtr exchange = make_reduce_scatter(tensor, sizes, dim, use_fp32, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable_reduce_scatter(tensor, exchange, work); });
}

}  // namespace meshrun
