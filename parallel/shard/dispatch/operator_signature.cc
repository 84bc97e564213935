#include "parallel/shard/dispatch/operator_signature.h"

#include <algorithm>
#include <optional>

#include "ATen/core/List.h"
#include "c10/util/Exception.h"

namespace meshrun {
namespace {

using torch::jit::Stack;

bool is_tensor_type(const c10::TypePtr& type, bool& is_list) {
  is_list = false;
  c10::TypePtr inner = type;
  if (auto optional = inner->cast<c10::OptionalType>()) inner = optional->getElementType();
  if (auto list = inner->cast<c10::ListType>()) {
    is_list = true;
    inner = list->getElementType();
    if (auto optional = inner->cast<c10::OptionalType>()) inner = optional->getElementType();
  }
  return inner->kind() == c10::TypeKind::TensorType;
}

}  // namespace

OperatorSignature::OperatorSignature(const c10::FunctionSchema& schema)
    : num_arguments(schema.arguments().size()), num_returns(schema.returns().size()) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "memory_format") memory_format = static_cast<int>(i);
    bool is_list = false;
    if (!is_tensor_type(arguments[i].type(), is_list)) continue;
    const bool written =
        arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    tensors.push_back({i, is_list, written, arguments[i].is_out()});
    num_written += written ? 1 : 0;
  }
  for (const c10::Argument& result : schema.returns()) {
    int argument = -1;
    if (const c10::AliasInfo* alias = result.alias_info()) {
      for (size_t i = 0; alias->isWrite() && i < arguments.size(); ++i) {
        const c10::AliasInfo* of = arguments[i].alias_info();
        if (of != nullptr && of->isWrite() && of->beforeSets() == alias->beforeSets()) {
          argument = static_cast<int>(i);
        }
      }
      is_view |= !alias->isWrite();
    }
    returned_argument.push_back(argument);
  }
}

OperatorSignature OperatorSignature::of(const std::string& name) {
  return OperatorSignature(operator_named(name).schema());
}

bool has_form(const c10::FunctionSchema& schema, std::initializer_list<c10::TypeKind> kinds,
              bool in_place) {
  const auto is_written = [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  if (arguments.size() != kinds.size() || returns.size() != 1) return false;
  const bool same_kinds = std::equal(kinds.begin(), kinds.end(), arguments.begin(),
                                     [](c10::TypeKind kind, const c10::Argument& argument) {
                                       return argument.type()->kind() == kind && !argument.is_out();
                                     });
  if (!same_kinds || returns.front().type()->kind() != c10::TypeKind::TensorType) return false;
  if (in_place) {
    return is_written(arguments.front()) && is_written(returns.front()) &&
           std::none_of(arguments.begin() + 1, arguments.end(), is_written);
  }
  return std::none_of(
             arguments.begin(), arguments.end(),
             [](const c10::Argument& argument) { return argument.alias_info() != nullptr; }) &&
         returns.front().alias_info() == nullptr;
}

std::optional<c10::OperatorHandle> find_operator(const std::string& name) {
  const size_t dot = name.find('.', name.find("::"));
  return c10::Dispatcher::singleton().findSchema(
      dot == std::string::npos ? c10::OperatorName(name, "")
                               : c10::OperatorName(name.substr(0, dot), name.substr(dot + 1)));
}

c10::OperatorHandle operator_named(const std::string& name) {
  const std::optional<c10::OperatorHandle> handle = find_operator(name);
  TORCH_CHECK_VALUE(handle.has_value(), "LibTorch has no operator '", name, "'");
  return *handle;
}

void for_each_tensor(const Stack& stack, size_t count,
                     const std::function<void(const at::Tensor&)>& call) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    const c10::IValue& value = stack[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) call(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) call(tensor);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor.has_value() && tensor->defined()) call(*tensor);
      }
    }
  }
}

void replace_tensors(Stack& stack, size_t count,
                     const std::function<at::Tensor(const at::Tensor&)>& call) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = call(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> replaced;
      for (const at::Tensor& tensor : value.toTensorVector()) replaced.push_back(call(tensor));
      value = std::move(replaced);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> replaced;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        replaced.push_back(tensor.has_value() && tensor->defined()
                               ? std::optional<at::Tensor>(call(*tensor))
                               : tensor);
      }
      value = std::move(replaced);
    }
  }
}

}  // namespace meshrun
