#include "parallel/collectives/transpose.h"

#include "parallel/collectives/call/autograd_node.h"

namespace meshrun {

std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>> distributed_transpose(
    const at::Tensor& tensor, IntArgument dim0, IntArgument dim1, const GroupArgument& group,
    BoolArgument async_op, const std::optional<std::vector<int64_t>>& dim1_sizes) {
  const CollectivePtr collective = make_transpose(tensor, dim0, dim1, dim1_sizes, group);
  if (!async_op) return {differentiable(tensor, collective), nullptr};
  const c10::NoGradGuard no_grad;
  WorkPtr work;
  at::Tensor output = launch(*collective, tensor, {.work = &work});
  return {std::move(output), std::move(work)};
}

}  // namespace meshrun
