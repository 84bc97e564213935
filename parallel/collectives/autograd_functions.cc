#include "parallel/collectives/autograd_functions.h"

#include "ATen/ops/zeros.h"
#include "parallel/collectives/differentiable.h"

namespace meshrun {
namespace {

// Inside forward() the mode is off, whatever it was outside.
CallForm form_of(const at::Tensor& tensor, WorkPtr* work) {
  return {tensor.defined() && tensor.requires_grad(), work};
}

// The node of Function, or the call alone.
template <typename Function, typename Compute>
at::Tensor node_or(const at::Tensor& tensor, const ExchangePtr& exchange, WorkPtr* work,
                   const Compute& compute) {
  if (wants_gradient(tensor) && exchange->problem.empty()) {
    return Function::apply(tensor, exchange, work);
  }
  const c10::NoGradGuard no_grad;  // a backend may copy with tensor operators
  return compute(tensor, *exchange, CallForm{false, work});
}

}  // namespace

at::Tensor differentiable_all_gather(const at::Tensor& tensor, const ExchangePtr& exchange,
                                     WorkPtr* work) {
  return node_or<AllGatherVAutograd>(tensor, exchange, work, all_gather);
}

at::Tensor differentiable_reduce_scatter(const at::Tensor& tensor, const ExchangePtr& exchange,
                                         WorkPtr* work) {
  return node_or<ReduceScatterVAutograd>(tensor, exchange, work, reduce_scatter);
}

at::Tensor differentiable_gather(const at::Tensor& tensor, const ExchangePtr& exchange,
                                 WorkPtr* work) {
  return node_or<GatherVAutograd>(tensor, exchange, work, gather);
}

at::Tensor differentiable_scatter(const at::Tensor& tensor, const ExchangePtr& exchange,
                                  WorkPtr* work) {
  return node_or<ScatterVAutograd>(tensor, exchange, work, scatter);
}

at::Tensor differentiable_all_to_all(const at::Tensor& tensor, const ExchangePtr& exchange,
                                     bool reversed, WorkPtr* work) {
  if (wants_gradient(tensor) && exchange->problem.empty()) {
    return AllToAllVAutograd::apply(tensor, exchange, reversed, work);
  }
  const c10::NoGradGuard no_grad;
  return all_to_all(tensor, exchange, reversed, {false, work});
}

at::Tensor connected_zeros(const at::Tensor& tensor, at::IntArrayRef shape) {
  if (wants_gradient(tensor)) return ConnectedZeros::apply(tensor, shape);
  return at::zeros(shape, tensor.options());
}

// AllGatherV.

at::Tensor AllGatherVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                       const Sizes& sizes, IntArgument dim, BoolArgument use_fp32,
                                       const GroupArgument& group) {
  return forward(ctx, tensor, make_all_gather(tensor, sizes, dim, use_fp32, group), nullptr);
}

at::Tensor AllGatherVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                       const ExchangePtr& exchange, WorkPtr* work) {
  save_exchange(ctx, exchange);
  return all_gather(tensor, *exchange, form_of(tensor, work));
}

variable_list AllGatherVAutograd::backward(AutogradContext* ctx, const variable_list& grads) {
  const CalledAs name("backward of all_gather_v");
  return only_first(differentiable_reduce_scatter(grads[0], saved_exchange(ctx)));
}

// ReduceScatterV.

at::Tensor ReduceScatterVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                           const Sizes& sizes, IntArgument dim,
                                           BoolArgument use_fp32, const GroupArgument& group) {
  return forward(ctx, tensor, make_reduce_scatter(tensor, sizes, dim, use_fp32, group), nullptr);
}

at::Tensor ReduceScatterVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                           const ExchangePtr& exchange, WorkPtr* work) {
  save_exchange(ctx, exchange);
  return reduce_scatter(tensor, *exchange, form_of(tensor, work));
}

variable_list ReduceScatterVAutograd::backward(AutogradContext* ctx, const variable_list& grads) {
  const CalledAs name("backward of reduce_scatter_v");
  return only_first(differentiable_all_gather(grads[0], saved_exchange(ctx)));
}

// GatherV.

at::Tensor GatherVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                    const Sizes& sizes, IntArgument dim, IntArgument dst,
                                    const GroupArgument& group) {
  return forward(ctx, tensor, make_gather(tensor, sizes, dim, dst, group), nullptr);
}

at::Tensor GatherVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                    const ExchangePtr& exchange, WorkPtr* work) {
  save_exchange(ctx, exchange);
  return gather(tensor, *exchange, form_of(tensor, work));
}

variable_list GatherVAutograd::backward(AutogradContext* ctx, const variable_list& grads) {
  const CalledAs name("backward of gather_v");
  return only_first(differentiable_scatter(grads[0], saved_exchange(ctx)));
}

// ScatterV.

at::Tensor ScatterVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                     const Sizes& sizes, IntArgument dim, IntArgument src,
                                     const GroupArgument& group) {
  return forward(ctx, tensor, make_scatter(tensor, sizes, dim, src, group), nullptr);
}

at::Tensor ScatterVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                     const ExchangePtr& exchange, WorkPtr* work) {
  save_exchange(ctx, exchange);
  if (!exchange->is_root() && tensor.defined()) ctx->saved_data.emplace("shape", tensor.sizes());
  return scatter(tensor, *exchange, form_of(tensor, work));
}

variable_list ScatterVAutograd::backward(AutogradContext* ctx, const variable_list& grads) {
  const CalledAs name("backward of scatter_v");
  const ExchangePtr exchange = saved_exchange(ctx);
  at::Tensor gathered = differentiable_gather(grads[0], exchange);
  if (exchange->is_root()) return only_first(std::move(gathered));
  return only_first(connected_zeros(gathered, ctx->saved_data.at("shape").toIntVector()));
}

// AllToAllV.

at::Tensor AllToAllVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                      const ExchangePtr& exchange, bool reversed, WorkPtr* work) {
  save_exchange(ctx, exchange);
  ctx->saved_data.emplace("reversed", reversed);
  return all_to_all(tensor, exchange, reversed, form_of(tensor, work));
}

variable_list AllToAllVAutograd::backward(AutogradContext* ctx, const variable_list& grads) {
  const bool reversed = ctx->saved_data.at("reversed").toBool();
  const ExchangePtr exchange = saved_exchange(ctx);
  // Others say in their words what they are.
  const CalledAs name(exchange->agreed == 0 ? "backward of all_to_all_v" : "backward");
  return only_first(differentiable_all_to_all(grads[0], exchange, !reversed));
}

// ConnectedZeros.

at::Tensor ConnectedZeros::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                   at::IntArrayRef shape) {
  ctx->saved_data.emplace("shape", tensor.sizes());
  return at::zeros(shape, tensor.options());
}

variable_list ConnectedZeros::backward(AutogradContext* ctx, const variable_list& grads) {
  return only_first(connected_zeros(grads[0], ctx->saved_data.at("shape").toIntVector()));
}

}  // namespace meshrun
