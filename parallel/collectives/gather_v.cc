#include "parallel/collectives/gather_v.h"

#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {

at::Tensor gather_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim, IntArgument dst,
                    const GroupArgument& group) {
  return differentiable(tensor, make_gather(tensor, sizes, dim, dst, group));
}

AsyncTensor gather_v_async(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                           IntArgument dst, const GroupArgument& group) {
  const CollectivePtr collective = make_gather(tensor, sizes, dim, dst, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable(tensor, collective, Pass::kForward, work); });
}

}  // namespace meshrun
