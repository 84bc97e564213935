#include "parallel/collectives/scatter_v.h"

#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {

at::Tensor scatter_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim, IntArgument src,
                     const GroupArgument& group) {
  return differentiable(tensor, make_scatter(tensor, sizes, dim, src, group));
}

AsyncTensor scatter_v_async(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                            IntArgument src, const GroupArgument& group) {
  const CollectivePtr collective = make_scatter(tensor, sizes, dim, src, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable(tensor, collective, Pass::kForward, work); });
}

}  // namespace meshrun
