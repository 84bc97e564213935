#include "python/extension/linear_operator.h"

#include <optional>
#include <string>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "c10/util/Exception.h"
#include "parallel/collectives/call/autograd_node.h"
#include "python/extension/operators.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun::python {
namespace {

struct KeptAdjoint : torch::CustomClassHolder {
  KeptAdjoint(Adjoint its_call, const NodeNumber& its_number)
      : call(std::move(its_call)), number(its_number) {}
  const Adjoint call;
  const NodeNumber number;
};

struct LinearNode : torch::autograd::Function<LinearNode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, std::string_view group,
                            Forward forward, c10::function_ref<Adjoint(const at::Tensor&)> adjoint,
                            const std::vector<at::Tensor>& saved) {
    const at::AutoDispatchBelowADInplaceOrView below;
    NodeNumber number;
    if (!has_no_memory(tensor)) number = number_of_node(*group_named(group), tensor);
    at::Tensor result = forward(true, group);
    ctx->saved_data.emplace("adjoint", at::IValue::make_capsule(c10::make_intrusive<KeptAdjoint>(
                                           adjoint(result), number)));
    if (!saved.empty()) ctx->save_for_backward(saved);
    return result;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto adjoint =
        c10::static_intrusive_pointer_cast<KeptAdjoint>(ctx->saved_data.at("adjoint").toCapsule());
    // Before the scope: a checkpoint's hook may compute the forward pass again.
    const variable_list saved = ctx->get_saved_variables();
    const NodeNumber::Scope scope(adjoint->number);
    return only_first(adjoint->call(grads[0], saved));
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& tensor, std::string_view group, Forward forward,
                  c10::function_ref<Adjoint(const at::Tensor&)> adjoint,
                  const std::vector<at::Tensor>& saved) {
  // The result of forward() would have no tangent, which counts as zero.
  TORCH_CHECK_NOT_IMPLEMENTED(
      !tensor._fw_grad(/*level=*/0).defined(),
      "meshrun's collectives have no forward-mode derivatives (torch.func.jvp, dual numbers): take "
      "them in reverse mode, by torch.autograd.grad");
  std::string marked;
  std::optional<NodeNumber::Scope> untold;
  if (has_no_memory(tensor)) {
    marked = in_trace(group);
    group = marked;
  } else if (is_in_trace(group)) {
    untold.emplace(NodeNumber::untold());
  }
  if (wants_gradient(tensor)) return LinearNode::apply(tensor, group, forward, adjoint, saved);
  const at::AutoDispatchBelowADInplaceOrView below;
  return forward(false, group);
}

}  // namespace meshrun::python
