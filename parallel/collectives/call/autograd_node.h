// The autograd node of every collective on pieces: its backward is the adjoint collective, itself a
// node, so there are derivatives of any order. Internal to parallel/collectives.
//
// Nodes keep the Collective, never the global tensor. An undefined cotangent counts as zeros,
// because the other ranks need this rank's part.
#pragma once

#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "parallel/collectives/call/async_tensor.h"
#include "parallel/collectives/call/launch.h"
#include "parallel/comm/interface/node_number.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

inline bool wants_gradient(const at::Tensor& tensor) {
  return c10::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

struct CollectiveNode : torch::autograd::Function<CollectiveNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const CollectivePtr& collective, Launch how = {});
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};

// With a node where a gradient is wanted. A wrong call makes none: it ends with an error.
at::Tensor differentiable(const at::Tensor& tensor, const CollectivePtr& collective,
                          Pass pass = Pass::kForward, WorkPtr* work = nullptr);

// Zeros of `shape`, as a linear function of `tensor`: its values are not read, but its node stays
// in the graph, for derivatives of any order. tie() and the gradients of ranks other than a root
// use it.
struct ConnectedZeros : torch::autograd::Function<ConnectedZeros> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, at::IntArrayRef shape);
  static variable_list backward(AutogradContext* ctx, const variable_list& grads);
};
at::Tensor connected_zeros(const at::Tensor& tensor, at::IntArrayRef shape);

// For a node that is being made, whose backward calls `group` with tensors of `tensor`'s device.
NodeNumber number_of_node(c10d::ProcessGroup& group, const at::Tensor& tensor);
// Instead of a node, where a gradient is wanted on other ranks alone and nothing compares that: the
// ranks' later nodes have equal numbers.
void count_without_node(c10d::ProcessGroup& group, const at::Tensor& tensor);

// What a node keeps for its backward.
struct KeptCollective : torch::CustomClassHolder {
  KeptCollective(const CollectivePtr& its_collective, const NodeNumber& its_number)
      : collective(its_collective), number(its_number) {}
  const CollectivePtr collective;
  const NodeNumber number;
};
inline void save_collective(AutogradContext* ctx, const CollectivePtr& collective,
                            const NodeNumber& number = {}) {
  ctx->saved_data.emplace(
      "collective",
      at::IValue::make_capsule(c10::make_intrusive<KeptCollective>(collective, number)));
}
inline c10::intrusive_ptr<KeptCollective> saved_collective(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<KeptCollective>(
      ctx->saved_data.at("collective").toCapsule());
}

// The number of a node that keeps no KeptCollective; empty if it has saved none.
inline void save_number(AutogradContext* ctx, const NodeNumber& number) {
  ctx->saved_data.emplace("number", number.packed());
}
inline NodeNumber saved_number(AutogradContext* ctx) {
  const auto found = ctx->saved_data.find("number");
  return found == ctx->saved_data.end() ? NodeNumber() : NodeNumber(found->second.toInt());
}

// One gradient, of the first argument. As many as any forward() has arguments: LibTorch drops those
// undefined beyond.
inline variable_list only_first(at::Tensor gradient) {
  variable_list gradients(6);
  gradients[0] = std::move(gradient);
  return gradients;
}

// An AsyncTensor of what `call` returns, given where to leave its Work.
template <typename Call>
AsyncTensor asynchronously(const Call& call) {
  WorkPtr work;
  at::Tensor tensor = call(&work);
  return {std::move(tensor), std::move(work)};
}

}  // namespace meshrun
