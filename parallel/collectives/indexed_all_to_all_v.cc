#include "parallel/collectives/indexed_all_to_all_v.h"

#include <utility>

#include "parallel/collectives/autograd_functions.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/collectives/plans/indexed_exchange.h"

namespace meshrun {
namespace {

constexpr const char* kPlan = "plan";

// What a node keeps.
struct SavedPlan : torch::CustomClassHolder {
  SavedPlan(IndexedAllToAllPlan plan, bool wide, int64_t along, const NodeNumber& its_number)
      : plan(std::move(plan)), use_fp32(wide), dim(along), number(its_number) {}
  const IndexedAllToAllPlan plan;
  const bool use_fp32;
  const int64_t dim;
  const NodeNumber number;
};

void save(AutogradContext* ctx, const at::Tensor& tensor, const IndexedAllToAllPlan& plan,
          bool use_fp32, int64_t dim) {
  NodeNumber number;
  if (tensor.defined() && tensor.requires_grad()) number = number_of_node(*plan.group(), tensor);
  ctx->saved_data.emplace(
      kPlan, at::IValue::make_capsule(c10::make_intrusive<SavedPlan>(plan, use_fp32, dim, number)));
}

c10::intrusive_ptr<SavedPlan> saved_plan(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<SavedPlan>(ctx->saved_data.at(kPlan).toCapsule());
}

bool is_wrong(const at::Tensor& tensor, const IndexedAllToAllPlan& plan, bool reversed,
              int64_t dim) {
  return !check_indexed(tensor, *plan.state(), reversed, dim).empty();
}

at::Tensor exchange(const at::Tensor& tensor, const IndexedAllToAllPlan& plan, bool use_fp32,
                    int64_t dim, WorkPtr* work) {
  if (wants_gradient(tensor) && !is_wrong(tensor, plan, false, dim)) {
    return IndexedAllToAllVAutograd::apply(tensor, plan, use_fp32, dim, work);
  }
  const c10::NoGradGuard no_grad;
  return indexed_all_to_all(tensor, plan.state(), use_fp32, dim, {.work = work});
}

at::Tensor exchange_back(const at::Tensor& tensor, const IndexedAllToAllPlan& plan, bool use_fp32,
                         int64_t dim) {
  if (wants_gradient(tensor) && !is_wrong(tensor, plan, true, dim)) {
    return IndexedAllToAllVReverseAutograd::apply(tensor, plan, use_fp32, dim);
  }
  const c10::NoGradGuard no_grad;
  return indexed_all_to_all_reverse(tensor, plan.state(), use_fp32, dim, false);
}

// The plan of one call. A dim out of range is found, and reported, when the plan is used.
IndexedAllToAllPlan plan_for(const at::Tensor& tensor, const std::vector<at::Tensor>& indices,
                             const std::vector<std::vector<int64_t>>& sizes, int64_t dim,
                             const GroupArgument& group) {
  const bool has_dim = tensor.defined() && wrap_dim("dim", dim, tensor.dim()).empty();
  return {indices, sizes, has_dim ? tensor.size(dim) : 0, group};
}

}  // namespace

at::Tensor indexed_all_to_all_v(const at::Tensor& tensor, const std::vector<at::Tensor>& indices,
                                const std::vector<std::vector<int64_t>>& sizes,
                                BoolArgument use_fp32, IntArgument dim,
                                const GroupArgument& group) {
  return exchange(tensor, plan_for(tensor, indices, sizes, dim, group), use_fp32, dim, nullptr);
}

at::Tensor indexed_all_to_all_v(const at::Tensor& tensor, const IndexedAllToAllPlan& plan,
                                BoolArgument use_fp32, IntArgument dim) {
  return exchange(tensor, plan, use_fp32, dim, nullptr);
}

AsyncTensor indexed_all_to_all_v_async(const at::Tensor& tensor,
                                       const std::vector<at::Tensor>& indices,
                                       const std::vector<std::vector<int64_t>>& sizes,
                                       BoolArgument use_fp32, IntArgument dim,
                                       const GroupArgument& group) {
  return indexed_all_to_all_v_async(tensor, plan_for(tensor, indices, sizes, dim, group), use_fp32,
                                    dim);
}

AsyncTensor indexed_all_to_all_v_async(const at::Tensor& tensor, const IndexedAllToAllPlan& plan,
                                       BoolArgument use_fp32, IntArgument dim) {
  return asynchronously([&](WorkPtr* work) { return exchange(tensor, plan, use_fp32, dim, work); });
}

at::Tensor IndexedAllToAllVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                             const std::vector<at::Tensor>& indices,
                                             const std::vector<std::vector<int64_t>>& sizes,
                                             BoolArgument use_fp32, IntArgument dim,
                                             const GroupArgument& group) {
  return forward(ctx, tensor, plan_for(tensor, indices, sizes, dim, group), use_fp32, dim);
}

at::Tensor IndexedAllToAllVAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                             const IndexedAllToAllPlan& plan, BoolArgument use_fp32,
                                             IntArgument dim, WorkPtr* work) {
  save(ctx, tensor, plan, use_fp32, dim);
  return indexed_all_to_all(
      tensor, plan.state(), use_fp32, dim,
      {.requires_grad = tensor.defined() && tensor.requires_grad(), .work = work});
}

variable_list IndexedAllToAllVAutograd::backward(AutogradContext* ctx, const variable_list& grads) {
  const auto saved = saved_plan(ctx);
  const NodeNumber::Scope scope(saved->number);
  return only_first(exchange_back(grads[0], saved->plan, saved->use_fp32, saved->dim));
}

at::Tensor IndexedAllToAllVReverseAutograd::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                                    const IndexedAllToAllPlan& plan,
                                                    BoolArgument use_fp32, IntArgument dim) {
  save(ctx, tensor, plan, use_fp32, dim);
  return indexed_all_to_all_reverse(tensor, plan.state(), use_fp32, dim,
                                    tensor.defined() && tensor.requires_grad());
}

variable_list IndexedAllToAllVReverseAutograd::backward(AutogradContext* ctx,
                                                        const variable_list& grads) {
  const auto saved = saved_plan(ctx);
  const NodeNumber::Scope scope(saved->number);
  return only_first(exchange(grads[0], saved->plan, saved->use_fp32, saved->dim, nullptr));
}

}  // namespace meshrun
