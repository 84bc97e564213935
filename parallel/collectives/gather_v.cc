#include "parallel/collectives/gather_v.h"

#include "parallel/collectives/differentiable.h"

namespace meshrun {
namespace {

ExchangePtr exchange_of(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t dst,
                        const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(Role::kPiece, tensor, sizes, dim, group);
  set_root(*exchange, "dst", dst);
  return exchange;
}

}  // namespace

at::Tensor gather_v(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t dst,
                    const GroupArgument& group) {
  return differentiable_gather(tensor, exchange_of(tensor, sizes, dim, dst, group));
}

AsyncTensor gather_v_async(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, int64_t dst,
                           const GroupArgument& group) {
  const ExchangePtr exchange = exchange_of(tensor, sizes, dim, dst, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable_gather(tensor, exchange, work); });
}

}  // namespace meshrun
