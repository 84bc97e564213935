// What happens before a handler of the table runs, in one place for all of them:
//
//   below autograd   a plain operand that requires a gradient is announced, or it is an error; a
//                    view of a normal tensor is one in inference mode too, also where it is moved
//   above autograd   operands become what autocast has them (cast_policy.h); a tangent that
//                    the handler loses is an error (tangents.h)
//   both             PromotionMode decides on plain operands
//
// Written operands (in place and out=) are looked at in function handlers alone, where all
// are plain; the kernel of plain_targets.h does that for all other operators. Boxed kernels pass as
// they are and do the same themselves. Internal to parallel/shard.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ATen/core/IListRef.h"
#include "ATen/core/List.h"
#include "ATen/core/Tensor.h"
#include "c10/core/InferenceMode.h"
#include "parallel/base/sharded_key.h"
#include "parallel/shard/dispatch/cast_policy.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/tangents.h"
#include "torch/library.h"

namespace meshrun {
namespace detail {

// R(Arguments...) of a function pointer or of an object with one operator().
template <typename Function>
struct SignatureOf {};
template <typename Result, typename... Arguments>
struct SignatureOf<Result (*)(Arguments...)> {
  using type = Result(Arguments...);
};
template <typename Object, typename Result, typename... Arguments>
struct SignatureOf<Result (Object::*)(Arguments...)> {
  using type = Result(Arguments...);
};
template <typename Object, typename Result, typename... Arguments>
struct SignatureOf<Result (Object::*)(Arguments...) const> {
  using type = Result(Arguments...);
};
template <typename Object>
requires requires { &Object::operator(); }
struct SignatureOf<Object> : SignatureOf<decltype(&Object::operator())> {};

template <typename Argument>
constexpr bool kIsWritten =
    std::is_lvalue_reference_v<Argument> && !std::is_const_v<std::remove_reference_t<Argument>>;

// Calls `visit` with each tensor of an argument that is read.
template <typename Argument, typename Visit>
void for_tensors_of([[maybe_unused]] const std::remove_reference_t<Argument>& argument,
                    [[maybe_unused]] const Visit& visit) {
  using Value = std::remove_cvref_t<Argument>;
  if constexpr (kIsWritten<Argument>) {
    return;
  } else if constexpr (std::is_same_v<Value, at::Tensor>) {
    visit(argument);
  } else if constexpr (std::is_same_v<Value, std::optional<at::Tensor>>) {
    if (argument) visit(*argument);
  } else if constexpr (std::is_same_v<Value, at::TensorList> ||
                       std::is_same_v<Value, at::ITensorListRef>) {
    for (const at::Tensor& tensor : argument) visit(tensor);
  } else if constexpr (std::is_same_v<Value, c10::List<std::optional<at::Tensor>>>) {
    for (size_t i = 0; i < argument.size(); ++i) {
      const std::optional<at::Tensor> tensor = argument.get(i);
      if (tensor) visit(*tensor);
    }
  }
}

// Calls `visit` with an argument that is a written tensor.
template <typename Argument, typename Visit>
void for_written_of([[maybe_unused]] std::remove_reference_t<Argument>& argument,
                    [[maybe_unused]] const Visit& visit) {
  if constexpr (kIsWritten<Argument> && std::is_same_v<std::remove_cvref_t<Argument>, at::Tensor>) {
    visit(argument);
  }
}

// The argument with `map` of each tensor that autocast may cast; all else as it is.
template <typename Argument, typename Map>
decltype(auto) mapped(std::remove_reference_t<Argument>& argument,
                      [[maybe_unused]] const Map& map) {
  using Value = std::remove_cvref_t<Argument>;
  if constexpr (kIsWritten<Argument>) {
    return static_cast<Argument>(argument);
  } else if constexpr (std::is_same_v<Value, at::Tensor>) {
    return at::Tensor(map(argument));
  } else if constexpr (std::is_same_v<Value, std::optional<at::Tensor>>) {
    return argument ? std::optional<at::Tensor>(map(*argument)) : std::optional<at::Tensor>();
  } else if constexpr (std::is_same_v<Value, at::TensorList>) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& tensor : argument) tensors.push_back(map(tensor));
    return tensors;
  } else {
    return static_cast<Argument&&>(argument);
  }
}

template <typename Function, typename Signature>
class BelowAutogradEntry;
template <typename Function, typename Result, typename... Arguments>
class BelowAutogradEntry<Function, Result(Arguments...)> {
 public:
  BelowAutogradEntry(const std::string& name, Function function)
      : name_(name),
        is_view_(OperatorSignature::of(name).is_view),
        function_(std::move(function)) {}

  Result operator()(Arguments... arguments) const {
    const auto check = [this](const at::Tensor& operand) {
      if (operand.defined() && !is_sharded(operand)) check_promotion(operand, name_.c_str());
    };
    (for_tensors_of<Arguments>(arguments, check), ...);
    std::optional<c10::InferenceMode> normal;
    if (is_view_ && c10::InferenceMode::is_enabled()) {
      const auto see = [&](const at::Tensor& operand) {
        if (operand.defined() && !operand.is_inference()) normal.emplace(false);
      };
      (for_tensors_of<Arguments>(arguments, see), ...);
    }
    return function_(std::forward<Arguments>(arguments)...);
  }

 private:
  const std::string name_;
  const bool is_view_;
  mutable Function function_;
};

template <typename Function, typename Signature>
class AboveAutogradEntry;
template <typename Function, typename Result, typename... Arguments>
class AboveAutogradEntry<Function, Result(Arguments...)> {
 public:
  AboveAutogradEntry(const std::string& name, Function function)
      : name_(name),
        op_(operator_named(name)),
        policies_(cast_policies_of(name)),
        function_(std::move(function)) {}

  Result operator()(Arguments... arguments) const {
    bool any_tangent = false;
    const auto see = [&](const at::Tensor& operand) { any_tangent |= has_tangent(operand); };
    (for_tensors_of<Arguments>(arguments, see), ...);
    if (!any_tangent) return run(std::forward<Arguments>(arguments)...);
    Result result = run(std::forward<Arguments>(arguments)...);
    if (loses_tangent(result)) refuse_tangent(name_.c_str());
    return result;
  }

 private:
  Result run(Arguments... arguments) const {
    std::optional<PromotionModeGuard> said;
    if (promotion_mode() != PromotionMode::kSilent) {
      const bool writes_plain = check_targets(arguments...);
      const auto check = [this](const at::Tensor& operand) {
        if (operand.defined() && !is_sharded(operand)) check_mode(operand, name_.c_str());
      };
      (for_tensors_of<Arguments>(arguments, check), ...);
      // The copy_() at the end of such a handler need not say the same again.
      if (writes_plain) said.emplace(PromotionMode::kSilent);
    }
    if (!any_autocast()) return function_(std::forward<Arguments>(arguments)...);

    AutocastCall call;
    (for_tensors_of<Arguments>(arguments, [&](const at::Tensor& operand) { call.see(operand); }),
     ...);
    switch (call.policy(op_, policies_)) {
      case CastPolicy::kParts:
        break;
      case CastPolicy::kLibTorchs: {
        const auto place = [&](const at::Tensor& operand) { return call.placed(operand); };
        return op_.typed<Result(Arguments...)>().redispatch(c10::DispatchKeySet(call.key()),
                                                            mapped<Arguments>(arguments, place)...);
      }
      case CastPolicy::kFloat32: {
        const auto cast = [&](const at::Tensor& operand) { return call.in_float32(operand); };
        const c10::impl::ExcludeDispatchKeyGuard without_autocast(call.key());
        return function_(mapped<Arguments>(arguments, cast)...);
      }
      case CastPolicy::kNone: {
        const c10::impl::ExcludeDispatchKeyGuard without_autocast(call.key());
        return function_(std::forward<Arguments>(arguments)...);
      }
    }
    return function_(std::forward<Arguments>(arguments)...);
  }

  // Whether it writes plain tensors alone.
  bool check_targets(std::remove_reference_t<Arguments>&... arguments) const {
    bool any_sharded = false;
    at::Tensor plain;
    const auto see = [&](const at::Tensor& target) {
      if (is_sharded(target)) any_sharded = true;
      if (!is_sharded(target) && target.defined()) plain = target;
    };
    (for_written_of<Arguments>(arguments, see), ...);
    if (any_sharded || !plain.defined()) return false;
    check_plain_target(plain, name_.c_str());
    return true;
  }

  const std::string name_;
  const c10::OperatorHandle op_;
  const CastPolicies* const policies_;
  mutable Function function_;
};

template <template <typename, typename> typename Entry, typename Function>
torch::CppFunction entered(const std::string& name, Function&& function) {
  using Handler = std::decay_t<Function>;
  if constexpr (requires { typename SignatureOf<Handler>::type; }) {
    return torch::CppFunction(Entry<Handler, typename SignatureOf<Handler>::type>(
        name, std::forward<Function>(function)));
  } else {
    return torch::CppFunction(std::forward<Function>(function));
  }
}

}  // namespace detail

// The kernels to register for a handler: typed functions with what happens before them.
template <typename Function>
torch::CppFunction below_autograd_kernel(const std::string& name, Function&& function) {
  return detail::entered<detail::BelowAutogradEntry>(name, std::forward<Function>(function));
}
template <typename Function>
torch::CppFunction above_autograd_kernel(const std::string& name, Function&& function) {
  return detail::entered<detail::AboveAutogradEntry>(name, std::forward<Function>(function));
}

}  // namespace meshrun
