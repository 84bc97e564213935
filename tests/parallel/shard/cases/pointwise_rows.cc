// Every pointwise row of the operator table, called as its schema says.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "tests/parallel/shard/operator_cases.h"
#include "torch/csrc/autograd/autograd.h"

namespace meshrun {
namespace {

constexpr size_t kRowsOfACase = 10;
// Operands of all rows of a case, by index.
constexpr size_t kReal = 0, kInteger = 3, kMask = 6, kNumber = 7;

bool is_tensor(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::OptionalType::ofTensor());
}

// Operators of rows that return new tensors; those in place and out= run the same kernels.
std::vector<c10::OperatorHandle> functional_rows() {
  std::vector<c10::OperatorHandle> rows;
  for (const OperatorRow& row : registered_operators()) {
    if (row.family != "pointwise") continue;
    const size_t dot = row.name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchema(
        {row.name.substr(0, dot), dot == std::string::npos ? "" : row.name.substr(dot + 1)});
    const auto& arguments = op.value().schema().arguments();
    const bool writes_or_views = std::any_of(arguments.begin(), arguments.end(), [](const auto& a) {
      return a.alias_info() != nullptr;
    });
    if (!writes_or_views && std::any_of(arguments.begin(), arguments.end(), is_tensor)) {
      rows.push_back(*op);
    }
  }
  return rows;
}

// A row and the operands that it takes.
struct RowCall {
  c10::OperatorHandle op;
  std::vector<size_t> operands;
  bool of_integers = false;
  bool has_gradient = false;
};

Tensors results_of(const RowCall& call, const Tensors& operands) {
  torch::jit::Stack stack;
  size_t next = 0;
  const at::Scalar number = call.of_integers ? at::Scalar(2) : at::Scalar(0.5);
  for (const c10::Argument& argument : call.op.schema().arguments()) {
    const c10::TypePtr& type = argument.type();
    if (is_tensor(argument)) {
      const at::Tensor& operand = operands[call.operands[next++]];
      stack.emplace_back(call.has_gradient ? operand : operand.detach());
    } else if (type->isSubtypeOf(*c10::NumberType::get()) &&
               type->kind() == c10::TypeKind::NumberType) {
      stack.emplace_back(number);
    } else if (type->str() == "Scalar?") {
      stack.emplace_back(number);
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (type->kind() == c10::TypeKind::OptionalType) {
      stack.emplace_back();
    } else if (type->kind() == c10::TypeKind::FloatType) {
      stack.emplace_back(0.5);
    } else if (type->kind() == c10::TypeKind::BoolType) {
      stack.emplace_back(false);
    } else {
      stack.emplace_back(int64_t{1});
    }
  }
  call.op.callBoxed(&stack);
  // What the gradient reads has other shapes on a GPU.
  if (call.op.operator_name().name == "aten::log_sigmoid_forward") stack.resize(1);
  Tensors results;
  for (const c10::IValue& result : stack) {
    const at::Tensor tensor = result.toTensor();
    results.push_back(tensor.is_complex() ? at::view_as_real(tensor) : tensor);
  }
  return results;
}

bool is_finite(const Tensors& results) {
  return std::all_of(results.begin(), results.end(), [](const at::Tensor& result) {
    return at::isfinite(result).all().item<bool>();
  });
}

// Nothing where no operands suit. LibTorch says which do, on plain ones.
std::optional<RowCall> call_of(const c10::OperatorHandle& op, const Tensors& plain) {
  const auto& arguments = op.schema().arguments();
  const auto count =
      static_cast<size_t>(std::count_if(arguments.begin(), arguments.end(), is_tensor));
  for (const size_t kind : {kReal, kInteger}) {
    for (const size_t masked : {count, size_t{0}, size_t{1}}) {
      for (const bool ends_with_number : {false, true}) {
        RowCall call{op, {}, kind == kInteger};
        for (size_t i = 0; i < count; ++i) call.operands.push_back(kind + i % 3);
        if (masked < count) call.operands[masked] = kMask;
        if (ends_with_number) call.operands.back() = kNumber;
        try {
          results_of(call, plain);
        } catch (const c10::Error&) {
          continue;
        }
        try {
          Tensors recorded;
          for (const at::Tensor& operand : plain) {
            recorded.push_back(operand.detach().set_requires_grad(operand.is_floating_point()));
          }
          call.has_gradient = true;
          const Tensors results = results_of(call, recorded);
          torch::autograd::backward({results[0]}, {at::ones_like(results[0])});
          call.has_gradient = is_finite(results);
        } catch (const c10::Error&) {
          call.has_gradient = false;
        }
        return call;
      }
    }
  }
  return std::nullopt;
}

const bool kRegistered = register_operator_cases("pointwise rows", [](Draw& draw) {
  static const std::vector<c10::OperatorHandle> rows = functional_rows();
  static size_t next = 0;  // ranks draw alike
  const std::vector<int64_t> shape = {draw.extent(), draw.extent()};
  // Within the domain of most.
  const auto real = [&] { return at::sigmoid(draw.normal(shape)) * 0.8 + 0.1; };
  Tensors operands = {real(), real(), real()};
  for (int i = 0; i < 3; ++i) operands.push_back(draw.integers(shape, 1, 5));
  operands.push_back(draw.integers(shape, 0, 1).to(at::kBool));
  operands.push_back(at::scalar_tensor(0.3, at::kDouble));
  std::vector<RowCall> calls;
  std::string name = "rows";
  for (size_t i = 0; i < kRowsOfACase; ++i, ++next) {
    const c10::OperatorHandle& op = rows[next % rows.size()];
    name += " " + c10::toString(op.operator_name());
    const std::optional<RowCall> call = call_of(op, operands);
    TORCH_CHECK(call, name, ": no operands suit");
    calls.push_back(*call);
  }
  return OperatorCase{name, operands, [calls](const Tensors& inputs) {
                        Tensors results;
                        for (const RowCall& call : calls) {
                          for (const at::Tensor& result : results_of(call, inputs)) {
                            results.push_back(result);
                          }
                        }
                        return results;
                      }};
});

}  // namespace
}  // namespace meshrun
