#include "parallel/collectives/reduce_scatter_v.h"

#include "parallel/collectives/differentiable.h"

namespace meshrun {
namespace {

ExchangePtr exchange_of(const at::Tensor& tensor, const Sizes& sizes, int64_t dim, bool use_fp32,
                        const GroupArgument& group) {
  ExchangePtr exchange = make_exchange(Role::kWhole, tensor, sizes, dim, group);
  exchange->use_fp32 = use_fp32;
  return exchange;
}

}  // namespace

at::Tensor reduce_scatter_v(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                            bool use_fp32, const GroupArgument& group) {
  return differentiable_reduce_scatter(tensor, exchange_of(tensor, sizes, dim, use_fp32, group));
}

AsyncTensor reduce_scatter_v_async(const at::Tensor& tensor, const Sizes& sizes, int64_t dim,
                                   bool use_fp32, const GroupArgument& group) {
  const ExchangePtr exchange = exchange_of(tensor, sizes, dim, use_fp32, group);
  return asynchronously(
      [&](WorkPtr* work) { return differentiable_reduce_scatter(tensor, exchange, work); });
}

}  // namespace meshrun
