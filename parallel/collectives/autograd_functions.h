// The autograd functions of the collectives. Programs call the functions of the same names in
// snake_case, which make a node only where a gradient is asked for; these are here to be seen, and
// for those who compose their own. apply() takes the arguments of the function, in its order.
//
//   forward                backward
//   AllGatherVAutograd     ReduceScatterVAutograd    and the reverse
//   GatherVAutograd        ScatterVAutograd          and the reverse
//   AllToAllVAutograd      itself, reversed
//   IndexedAllToAllV...    IndexedAllToAllVReverse   and the reverse
//
// Each backward is one collective, differentiable itself: derivatives of any order. Nodes keep
// sizes, never the global tensor. A cotangent that is undefined counts as zeros, for the other
// ranks need this one's part. Backward passes run where autograd runs them; graphs built in one
// order on all ranks run their collectives in one order.
//
// The forms with an Exchange or a plan are the room's own; `work`: where an asynchronous call
// leaves its Work, null otherwise.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
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
                            int64_t dim, bool use_fp32, const GroupArgument& group);
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

struct ReduceScatterVAutograd : torch::autograd::Function<ReduceScatterVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Sizes& sizes,
                            int64_t dim, bool use_fp32, const GroupArgument& group);
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

struct GatherVAutograd : torch::autograd::Function<GatherVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Sizes& sizes,
                            int64_t dim, int64_t dst, const GroupArgument& group);
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const ExchangePtr& exchange, WorkPtr* work);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

struct ScatterVAutograd : torch::autograd::Function<ScatterVAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const Sizes& sizes,
                            int64_t dim, int64_t src, const GroupArgument& group);
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
                            const IndexedAllToAllPlan& plan, bool use_fp32, int64_t dim,
                            WorkPtr* work = nullptr);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

// The adjoint: slices travel back and are added up.
struct IndexedAllToAllVReverseAutograd
    : torch::autograd::Function<IndexedAllToAllVReverseAutograd> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const IndexedAllToAllPlan& plan, bool use_fp32, int64_t dim);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

// Zeros of `shape`, as a linear function of `tensor`: no value of it is read, but its node stays in
// the graph, to any order of derivative. What tie() and the gradients off a root are made of.
struct ConnectedZeros : torch::autograd::Function<ConnectedZeros> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, at::IntArrayRef shape);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

}  // namespace meshrun
