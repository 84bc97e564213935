// The collectives on uneven pieces without gradients, under the names of PhysicsNeMo's
// distributed.utils: what the differentiable ones (all_gather_v.h and its neighbours) do forward
// and backward. Arguments, shapes, threads and errors are the same; no autograd node is ever made.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/plans/indexed_all_to_all_plan.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

at::Tensor all_gather_v_wrapper(const at::Tensor& tensor, const Sizes& sizes = {},
                                IntArgument dim = 0, const GroupArgument& group = {});
// reduce_scatter_v under its other name.
at::Tensor all_gather_v_bwd_wrapper(const at::Tensor& tensor, const Sizes& sizes,
                                    IntArgument dim = 0, BoolArgument use_fp32 = true,
                                    const GroupArgument& group = {});
at::Tensor gather_v_wrapper(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim = 0,
                            IntArgument dst = 0, const GroupArgument& group = {});
at::Tensor scatter_v_wrapper(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim = 0,
                             IntArgument src = 0, const GroupArgument& group = {});
at::Tensor indexed_all_to_all_v_wrapper(const at::Tensor& tensor,
                                        const std::vector<at::Tensor>& indices,
                                        const std::vector<std::vector<int64_t>>& sizes,
                                        IntArgument dim = 0, const GroupArgument& group = {});
// `tensor` has the shape of the forward result. The result has `tensor_size_along_dim` along dim;
// slices that were never sent are zero.
at::Tensor indexed_all_to_all_v_wrapper_bwd(const at::Tensor& tensor,
                                            const std::vector<at::Tensor>& indices,
                                            const std::vector<std::vector<int64_t>>& sizes,
                                            IntArgument tensor_size_along_dim,
                                            BoolArgument use_fp32 = true, IntArgument dim = 0,
                                            const GroupArgument& group = {});
// With a plan that the caller keeps.
at::Tensor indexed_all_to_all_v_wrapper_bwd(const at::Tensor& tensor,
                                            const IndexedAllToAllPlan& plan,
                                            BoolArgument use_fp32 = true, IntArgument dim = 0);

}  // namespace meshrun
