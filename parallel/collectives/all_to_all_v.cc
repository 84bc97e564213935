#include "parallel/collectives/all_to_all_v.h"

#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {

at::Tensor all_to_all_v(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                        at::IntArrayRef output_sizes, IntArgument input_dim, IntArgument output_dim,
                        const GroupArgument& group) {
  return differentiable(
      tensor, make_all_to_all(tensor, input_sizes, output_sizes, input_dim, output_dim, group));
}

AsyncTensor all_to_all_v_async(const at::Tensor& tensor, at::IntArrayRef input_sizes,
                               at::IntArrayRef output_sizes, IntArgument input_dim,
                               IntArgument output_dim, const GroupArgument& group) {
  const CollectivePtr collective =
      make_all_to_all(tensor, input_sizes, output_sizes, input_dim, output_dim, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable(tensor, collective, Pass::kForward, work); });
}

}  // namespace meshrun
