#include "parallel/collectives/transpose.h"

#include "parallel/collectives/differentiable.h"

namespace meshrun {

std::pair<at::Tensor, c10::intrusive_ptr<c10d::Work>> distributed_transpose(
    const at::Tensor& tensor, IntArgument dim0, IntArgument dim1, const GroupArgument& group,
    BoolArgument async_op, const std::optional<std::vector<int64_t>>& dim1_sizes) {
  const ExchangePtr exchange = make_transpose(tensor, dim0, dim1, dim1_sizes, group);
  if (!async_op) return {differentiable_all_to_all(tensor, exchange, /*reversed=*/false), nullptr};
  const c10::NoGradGuard no_grad;
  WorkPtr work;
  at::Tensor output = all_to_all(tensor, exchange, /*reversed=*/false, {false, &work});
  return {std::move(output), std::move(work)};
}

}  // namespace meshrun
