#include "parallel/collectives/reduce_scatter_v.h"

#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {

at::Tensor reduce_scatter_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                            BoolArgument use_fp32, const GroupArgument& group) {
  return differentiable(tensor, make_reduce_scatter(tensor, sizes, dim, use_fp32, group));
}

AsyncTensor reduce_scatter_v_async(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                                   BoolArgument use_fp32, const GroupArgument& group) {
  const CollectivePtr collective = make_reduce_scatter(tensor, sizes, dim, use_fp32, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable(tensor, collective, Pass::kForward, work); });
}

}  // namespace meshrun
