// Pointwise operators of the commonest forms without a stack: tensors and scalars in, a new tensor
// or the first one out. Operands that do not agree go the boxed way.
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "parallel/shard/dispatch/pointwise.h"

namespace meshrun {
namespace {

using Tensor = const at::Tensor&;
using Scalar = const at::Scalar&;

void see(PointwiseAgreement& agreement, Tensor operand) {
  agreement.see(operand.unsafeGetTensorImpl());
}
void see(PointwiseAgreement&, Scalar) {}

Tensor local_part(Tensor operand) {
  return static_cast<const ShardTensorImpl*>(operand.unsafeGetTensorImpl())->local();
}
Scalar local_part(Scalar scalar) { return scalar; }

template <typename Signature>
class TypedPointwise;

template <typename Result, typename... Arguments>
class TypedPointwise<Result(Arguments...)> {
 public:
  TypedPointwise(const std::string& name, Linearity linearity)
      : op_(operator_named(name).typed<Result(Arguments...)>()),
        boxed_(std::make_shared<PointwiseKernel>(name, linearity)),
        linearity_(linearity) {}

  Result operator()(Arguments... arguments) const {
    const at::AutoDispatchBelowADInplaceOrView guard;
    PointwiseAgreement agreement;
    (see(agreement, arguments), ...);
    const SpecPtr* spec = agreement.spec(linearity_);
    if constexpr (std::is_reference_v<Result>) {
      return in_place(spec, arguments...);
    } else {
      if (spec == nullptr) return run_boxed(arguments...);
      return wrap_like(op_.call(local_part(arguments)...), *spec, first(arguments...));
    }
  }

 private:
  template <typename... Rest>
  static const at::Tensor& first(const at::Tensor& tensor, const Rest&...) {
    return tensor;
  }

  template <typename... Rest>
  at::Tensor& in_place(const SpecPtr* spec, at::Tensor& self, Rest&... rest) const {
    if (spec == nullptr) {
      run_boxed(self, rest...);
    } else {
      at::Tensor local = local_part(self);
      op_.call(local, local_part(rest)...);
    }
    return self;
  }

  at::Tensor run_boxed(std::add_const_t<std::remove_reference_t<Arguments>>&... arguments) const {
    torch::jit::Stack stack;
    stack.reserve(sizeof...(Arguments));
    (stack.emplace_back(arguments), ...);
    (*boxed_)(op_, c10::DispatchKeySet(), &stack);
    return std::move(stack.front()).toTensor();
  }

  const c10::TypedOperatorHandle<Result(Arguments...)> op_;
  const std::shared_ptr<PointwiseKernel> boxed_;
  const Linearity linearity_;
};

template <typename Signature>
struct Form;
template <typename Result, typename... Arguments>
struct Form<Result(Arguments...)> {
  static std::optional<torch::CppFunction> function(const c10::FunctionSchema& schema,
                                                    const std::string& name, Linearity linearity) {
    if (!has_form(schema, {kTypeKind<Arguments>...}, std::is_reference_v<Result>)) {
      return std::nullopt;
    }
    return torch::CppFunction(TypedPointwise<Result(Arguments...)>(name, linearity));
  }
};

template <typename... Signatures>
struct Forms {
  static torch::CppFunction function(const std::string& name, Linearity linearity) {
    const c10::OperatorHandle op = operator_named(name);
    std::optional<torch::CppFunction> typed;
    // The first that fits.
    ((typed = Form<Signatures>::function(op.schema(), name, linearity), typed.has_value()) || ...);
    if (typed) return std::move(*typed);
    return torch::CppFunction::makeFromBoxedFunctor(
        std::make_unique<PointwiseKernel>(name, linearity));
  }
};

using CommonForms =
    Forms<at::Tensor(Tensor), at::Tensor(Tensor, Tensor), at::Tensor(Tensor, Scalar),
          at::Tensor(Tensor, Tensor, Scalar), at::Tensor(Tensor, Scalar, Scalar),
          at::Tensor(Tensor, Tensor, Tensor), at::Tensor&(at::Tensor&),
          at::Tensor&(at::Tensor&, Tensor), at::Tensor&(at::Tensor&, Scalar),
          at::Tensor&(at::Tensor&, Tensor, Scalar),
          at::Tensor&(at::Tensor&, Tensor, Tensor, Scalar)>;

}  // namespace

torch::CppFunction pointwise_function(const std::string& name, Linearity linearity) {
  return CommonForms::function(name, linearity);
}

}  // namespace meshrun
