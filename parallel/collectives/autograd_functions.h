// The autograd functions of the collectives. Programs call the functions of the same names in
// snake_case, which make a node only when a gradient is needed; these are public so that programs
// can compose their own. apply() takes the arguments of the function, in its order and with its
// defaults. The four on pieces and the all-to-all share one node (call/autograd_node.h).
//
//   forward                backward
//   AllGatherVAutograd     ReduceScatterVAutograd    and the reverse
//   GatherVAutograd        ScatterVAutograd          and the reverse
//   IndexedAllToAllV...    IndexedAllToAllVReverse   and the reverse
//
// Each backward is one collective and differentiable itself, so there are derivatives of any order.
// Backward passes run on autograd's threads; ranks that build their graphs in the same order run
// the collectives in the same order.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/base/sizes.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/plans/indexed_all_to_all_plan.h"
#include "parallel/manager/group_argument.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {

struct AllGatherVAutograd {
  static at::Tensor apply(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim = 0,
                          BoolArgument use_fp32 = true, const GroupArgument& group = {});
};

struct ReduceScatterVAutograd {
  static at::Tensor apply(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim = 0,
                          BoolArgument use_fp32 = true, const GroupArgument& group = {});
};

struct GatherVAutograd {
  static at::Tensor apply(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim = 0,
                          IntArgument dst = 0, const GroupArgument& group = {});
};

struct ScatterVAutograd {
  static at::Tensor apply(const at::Tensor& tensor, const Sizes& sizes, IntArgument dim = 0,
                          IntArgument src = 0, const GroupArgument& group = {});
};

struct IndexedAllToAllVAutograd : torch::autograd::Function<IndexedAllToAllVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const std::vector<at::Tensor>& indices,
                            const std::vector<std::vector<int64_t>>& sizes,
                            BoolArgument use_fp32 = true, IntArgument dim = 0,
                            const GroupArgument& group = {});
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const IndexedAllToAllPlan& plan, BoolArgument use_fp32, IntArgument dim,
                            WorkPtr* work = nullptr);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

// The adjoint: slices travel back and are added up.
struct IndexedAllToAllVReverseAutograd
    : torch::autograd::Function<IndexedAllToAllVReverseAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const IndexedAllToAllPlan& plan, BoolArgument use_fp32,
                            IntArgument dim);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

}  // namespace meshrun
