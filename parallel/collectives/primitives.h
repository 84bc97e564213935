// The collectives on uneven pieces without gradients, by the names of PhysicsNeMo's
// distributed.utils: what the differentiable ones (all_gather_v.h and its neighbours) do forward
// and backward. Arguments, shapes, threads and errors are theirs; no autograd node is made,
// whatever the input.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/collectives/group_argument.h"
#include "parallel/collectives/indexed_all_to_all_plan.h"
#include "parallel/collectives/sizes.h"

namespace meshrun {

at::Tensor all_gather_v_wrapper(const at::Tensor& tensor, const Sizes& sizes = {}, int64_t dim = 0,
                                const GroupArgument& group = {});
// reduce_scatter_v, by its other name.
at::Tensor all_gather_v_bwd_wrapper(const at::Tensor& tensor, const Sizes& sizes, int64_t dim = 0,
                                    bool use_fp32 = true, const GroupArgument& group = {});
at::Tensor gather_v_wrapper(const at::Tensor& tensor, const Sizes& sizes, int64_t dim = 0,
                            int64_t dst = 0, const GroupArgument& group = {});
at::Tensor scatter_v_wrapper(const at::Tensor& tensor, const Sizes& sizes, int64_t dim = 0,
                             int64_t src = 0, const GroupArgument& group = {});
at::Tensor indexed_all_to_all_v_wrapper(const at::Tensor& tensor,
                                        const std::vector<at::Tensor>& indices,
                                        const std::vector<std::vector<int64_t>>& sizes,
                                        int64_t dim = 0, const GroupArgument& group = {});
// `tensor` is shaped like the result of the forward one; the result has `tensor_size_along_dim`,
// slices that were never sent are zero.
at::Tensor indexed_all_to_all_v_wrapper_bwd(const at::Tensor& tensor,
                                            const std::vector<at::Tensor>& indices,
                                            const std::vector<std::vector<int64_t>>& sizes,
                                            int64_t tensor_size_along_dim, bool use_fp32 = true,
                                            int64_t dim = 0, const GroupArgument& group = {});
// With a plan that is kept.
at::Tensor indexed_all_to_all_v_wrapper_bwd(const at::Tensor& tensor,
                                            const IndexedAllToAllPlan& plan, bool use_fp32 = true,
                                            int64_t dim = 0);

}  // namespace meshrun
