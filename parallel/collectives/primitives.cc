#include "parallel/collectives/primitives.h"

#include "ATen/core/grad_mode.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/gather_v.h"
#include "parallel/collectives/indexed_all_to_all_v.h"
#include "parallel/collectives/plans/indexed_exchange.h"
#include "parallel/collectives/reduce_scatter_v.h"
#include "parallel/collectives/scatter_v.h"

namespace meshrun {

at::Tensor all_gather_v_wrapper(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                                const GroupArgument& group) {
  const c10::NoGradGuard no_grad;
  return all_gather_v(tensor, sizes, dim, /*use_fp32=*/true, group);
}

at::Tensor all_gather_v_bwd_wrapper(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                                    BoolArgument use_fp32, const GroupArgument& group) {
  const c10::NoGradGuard no_grad;
  return reduce_scatter_v(tensor, sizes, dim, use_fp32, group);
}

at::Tensor gather_v_wrapper(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                            IntArgument dst, const GroupArgument& group) {
  const c10::NoGradGuard no_grad;
  return gather_v(tensor, sizes, dim, dst, group);
}

at::Tensor scatter_v_wrapper(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim,
                             IntArgument src, const GroupArgument& group) {
  const c10::NoGradGuard no_grad;
  return scatter_v(tensor, sizes, dim, src, group);
}

at::Tensor indexed_all_to_all_v_wrapper(const at::Tensor& tensor,
                                        const std::vector<at::Tensor>& indices,
                                        const std::vector<std::vector<int64_t>>& sizes,
                                        IntArgument dim, const GroupArgument& group) {
  const c10::NoGradGuard no_grad;
  return indexed_all_to_all_v(tensor, indices, sizes, /*use_fp32=*/true, dim, group);
}

at::Tensor indexed_all_to_all_v_wrapper_bwd(const at::Tensor& tensor,
                                            const std::vector<at::Tensor>& indices,
                                            const std::vector<std::vector<int64_t>>& sizes,
                                            IntArgument tensor_size_along_dim,
                                            BoolArgument use_fp32, IntArgument dim,
                                            const GroupArgument& group) {
  return indexed_all_to_all_v_wrapper_bwd(
      tensor, IndexedAllToAllPlan(indices, sizes, tensor_size_along_dim, group), use_fp32, dim);
}

at::Tensor indexed_all_to_all_v_wrapper_bwd(const at::Tensor& tensor,
                                            const IndexedAllToAllPlan& plan, BoolArgument use_fp32,
                                            IntArgument dim) {
  const c10::NoGradGuard no_grad;
  return indexed_all_to_all_reverse(tensor, plan.state(), use_fp32, dim, /*requires_grad=*/false);
}

}  // namespace meshrun
