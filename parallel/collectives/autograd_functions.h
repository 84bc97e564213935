// The autograd functions of the collectives. Programs call the functions of the same names in
// snake_case, which make a node only when a gradient is needed; these are public so that programs
// can compose their own. apply() takes the arguments of the function, in its order and with its
// defaults.
//
//   forward                backward
//   AllGatherVAutograd     ReduceScatterVAutograd    and the reverse
//   GatherVAutograd        ScatterVAutograd          and the reverse
//   AllToAllVAutograd      itself, reversed
//   IndexedAllToAllV...    IndexedAllToAllVReverse   and the reverse
//
// Each backward is one collective and differentiable itself, so there are derivatives of any order.
// Nodes keep sizes, never the global tensor. An undefined cotangent counts as zeros, because the
// other ranks need this rank's part. Backward passes run on autograd's threads; ranks that build
// their graphs in the same order run the collectives in the same order.
//
// The forms with an Exchange are internal to parallel/collectives. `work`: where an asynchronous
// call leaves its Work; null otherwise.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/base/arguments.h"
#include "parallel/collectives/exchange.h"
#include "parallel/collectives/group_argument.h"
#include "parallel/collectives/indexed_all_to_all_plan.h"
#include "parallel/collectives/sizes.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct AllGatherVAutograd : torch::autograd::Function<AllGatherVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Sizes& sizes,
                            IntArgument dim = 0, BoolArgument use_fp32 = true,
                            const GroupArgument& group = {});
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

struct ReduceScatterVAutograd : torch::autograd::Function<ReduceScatterVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Sizes& sizes,
                            IntArgument dim = 0, BoolArgument use_fp32 = true,
                            const GroupArgument& group = {});
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

struct GatherVAutograd : torch::autograd::Function<GatherVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Sizes& sizes,
                            IntArgument dim = 0, IntArgument dst = 0,
                            const GroupArgument& group = {});
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

struct ScatterVAutograd : torch::autograd::Function<ScatterVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Sizes& sizes,
                            IntArgument dim = 0, IntArgument src = 0,
                            const GroupArgument& group = {});
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

struct AllToAllVAutograd : torch::autograd::Function<AllToAllVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, bool reversed, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
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

// Zeros of `shape`, as a linear function of `tensor`: its values are not read, but its node stays
// in the graph, for derivatives of any order. tie() and the gradients of ranks other than a root
// use it.
struct ConnectedZeros : torch::autograd::Function<ConnectedZeros> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, at::IntArrayRef shape);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

}  // namespace meshrun
