// Whether a call becomes a node, and what nodes keep. Internal to parallel/collectives.
#pragma once

#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "parallel/collectives/async_tensor.h"
#include "parallel/collectives/autograd_functions.h"
#include "parallel/collectives/exchange.h"

namespace meshrun {

inline bool wants_gradient(const at::Tensor& tensor) {
  return c10::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

// A node's Exchange.
inline void save_exchange(AutogradContext* ctx, const ExchangePtr& exchange) {
  ctx->saved_data.emplace("exchange", at::IValue::make_capsule(exchange));
}
inline ExchangePtr saved_exchange(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Exchange>(ctx->saved_data.at("exchange").toCapsule());
}

// One gradient, of the first argument. As many as any forward() has arguments: LibTorch drops those
// undefined beyond.
inline variable_list only_first(at::Tensor gradient) {
  variable_list gradients(6);
  gradients[0] = std::move(gradient);
  return gradients;
}

// The four on pieces of an Exchange. A wrong call makes no node: it ends with an error.
at::Tensor differentiable_all_gather(const at::Tensor& tensor, const ExchangePtr& exchange,
                                     WorkPtr* work = nullptr);
at::Tensor differentiable_reduce_scatter(const at::Tensor& tensor, const ExchangePtr& exchange,
                                         WorkPtr* work = nullptr);
at::Tensor differentiable_gather(const at::Tensor& tensor, const ExchangePtr& exchange,
                                 WorkPtr* work = nullptr);
at::Tensor differentiable_scatter(const at::Tensor& tensor, const ExchangePtr& exchange,
                                  WorkPtr* work = nullptr);
at::Tensor differentiable_all_to_all(const at::Tensor& tensor, const ExchangePtr& exchange,
                                     bool reversed, WorkPtr* work = nullptr);
at::Tensor connected_zeros(const at::Tensor& tensor, at::IntArrayRef shape);

// An AsyncTensor of what `call` returns, given where to leave its Work.
template <typename Call>
AsyncTensor asynchronously(const Call& call) {
  WorkPtr work;
  at::Tensor tensor = call(&work);
  return {std::move(tensor), std::move(work)};
}

}  // namespace meshrun
