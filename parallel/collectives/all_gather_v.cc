#include "parallel/collectives/all_gather_v.h"

#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {

at::Tensor all_gather_v(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                        BoolArgument use_fp32, const GroupArgument& group) {
  return differentiable(tensor, make_all_gather(tensor, sizes, dim, use_fp32, group));
}

AsyncTensor all_gather_v_async(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                               BoolArgument use_fp32, const GroupArgument& group) {
  const CollectivePtr collective = make_all_gather(tensor, sizes, dim, use_fp32, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable(tensor, collective, Pass::kForward, work); });
}

}  // namespace meshrun
