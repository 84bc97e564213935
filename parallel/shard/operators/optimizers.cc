// What optimizers call on lists of tensors. LibTorch's foreach operators are taken apart into
// operators on one tensor, which have rules of their own; fused steps run on local tensors, each in
// its parameter's layout.
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/boxing/OperatorKernel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/shard/dispatch/fallback.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {
namespace {

using torch::jit::Stack;

struct TensorByTensor : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    // LibTorch's autograd has recorded the operator on the list.
    const at::NoGradGuard no_history;
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
  }
};

// A step of a fused optimizer: the first list has the parameters. Tensors of a parameter's shape
// take its layout, and what was written goes back to where it lay.
class FusedStep : public c10::OperatorKernel {
 public:
  explicit FusedStep(const c10::FunctionSchema& schema) : signature_(schema) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    mesh_of(op, *stack);
    c10::IValue* arguments = stack->data() + (stack->size() - signature_.num_arguments);
    const std::vector<at::Tensor> parameters = arguments[0].toTensorVector();
    std::vector<std::pair<at::Tensor, at::Tensor>> moved;  // where it lay, and the copy
    for (const OperatorSignature::TensorArgument& argument : signature_.tensors) {
      c10::IValue& value = arguments[argument.index];
      if (!argument.is_list) {
        if (value.isTensor()) value = local_scalar(value.toTensor());
        continue;
      }
      const std::vector<at::Tensor> tensors = value.toTensorVector();
      c10::List<at::Tensor> locals;
      for (size_t i = 0; i < tensors.size(); ++i) {
        const at::Tensor& parameter = parameters.at(i);
        locals.push_back(tensors[i].dim() == 0 && parameter.dim() != 0
                             ? local_scalar(tensors[i])
                             : beside(parameter, tensors[i], argument.is_written, moved));
      }
      value = std::move(locals);
    }
    op.callBoxed(stack);
    for (auto& [target, copy] : moved) assign(target, copy);
  }

 private:
  static at::Tensor local_scalar(const at::Tensor& tensor) {
    const ShardTensorImpl* impl = shard_impl(tensor);
    if (impl == nullptr) return tensor;
    return redistribute_local(impl->local(), impl->spec(),
                              replicated_spec(impl->spec()->mesh(), tensor.sizes()));
  }

  static at::Tensor beside(const at::Tensor& parameter, const at::Tensor& tensor, bool is_written,
                           std::vector<std::pair<at::Tensor, at::Tensor>>& moved) {
    const ShardTensorImpl* lead = shard_impl(parameter);
    const ShardTensorImpl* impl = shard_impl(tensor);
    if (lead == nullptr && impl == nullptr) return tensor;
    if (lead == nullptr || impl == nullptr) {
      throw ShardTensorError(
          "a fused optimizer's parameter, gradient and states are all sharded, or none is");
    }
    const SpecPtr to = gradient_spec(lead->spec());
    // LibTorch's kernels take dense memory, and look at nobody's order.
    const at::Tensor local = redistribute_local(impl->local(), impl->spec(), to).contiguous();
    const bool is_copy = !same(impl->spec(), to) || !local.is_same(impl->local());
    if (is_written && is_copy) moved.emplace_back(tensor, wrap(local, to));
    return local;
  }

  const OperatorSignature signature_;
};

// Unscales gradients, and tells all ranks where any element of any rank is not finite.
void check_and_unscale(at::TensorList gradients, at::Tensor& found_inf,
                       const at::Tensor& inverse_scale) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  std::vector<at::Tensor> locals;
  std::vector<ShardMesh::Ptr> meshes;  // in the order that all ranks have
  for (const at::Tensor& gradient : gradients) {
    ShardTensorImpl* impl = shard_impl(gradient);
    if (impl == nullptr) {
      locals.push_back(gradient);
      continue;
    }
    const ShardMesh::Ptr& mesh = impl->spec()->mesh();
    if (std::find(meshes.begin(), meshes.end(), mesh) == meshes.end()) meshes.push_back(mesh);
    const SpecPtr to = gradient_spec(impl->spec());
    if (!same(to, impl->spec())) {
      impl->replace(redistribute_local(impl->local(), impl->spec(), to), to);
    }
    locals.push_back(impl->local());
  }
  at::Tensor found = is_shard_tensor(found_inf) ? local_of(found_inf) : found_inf;
  at::_amp_foreach_non_finite_check_and_unscale_(
      locals, found, is_shard_tensor(inverse_scale) ? local_of(inverse_scale) : inverse_scale);
  for (const ShardMesh::Ptr& mesh : meshes) {
    detail::all_reduce(mesh->group(), found, c10d::ReduceOp::MAX).wait();
  }
}

bool register_lists() {
  static const std::set<std::string> kFusedSteps = {"aten::_fused_adagrad_", "aten::_fused_adam_",
                                                    "aten::_fused_adamw_", "aten::_fused_sgd_"};
  // What they call for each tensor has none.
  static const std::set<std::string> kWithoutRule = {"aten::_foreach_powsum"};
  const Movement by_tensor = {"as the operator on one tensor", "as there", ""};
  const Movement fused = {"gradients and states in the parameter's layout",
                          "what lies otherwise; a Partial gradient is reduced", ""};
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle.has_value()) continue;
    const bool is_foreach =
        name.name.starts_with("aten::_foreach_") && !kWithoutRule.contains(name.name) &&
        handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    const bool is_fused_step = kFusedSteps.contains(name.name);
    const bool is_out = name.overload_name.ends_with("out");
    if (is_out) continue;
    const std::string full = c10::toString(name);
    if (is_foreach) {
      register_operator(
          {"optimizers", full, HandlerLevel::kBelowAutograd, by_tensor},
          torch::CppFunction::makeFromBoxedFunctor(std::make_unique<TensorByTensor>()));
    } else if (is_fused_step) {
      register_operator(
          {"optimizers", full, HandlerLevel::kBelowAutograd, fused},
          torch::CppFunction::makeFromBoxedFunctor(std::make_unique<FusedStep>(handle->schema())));
    }
  }
  return OperatorFamily("optimizers")
      .below_autograd("aten::_amp_foreach_non_finite_check_and_unscale_", &check_and_unscale,
                      {"any Shard, Replicate", "a Partial is reduced; one number on each mesh", ""})
      .registered();
}

const bool kRegistered = register_lists();

}  // namespace
}  // namespace meshrun
