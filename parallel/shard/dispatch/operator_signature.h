// Where an operator's tensors are among its arguments and results; read from its schema once.
//
// Values. Threads: any, once made.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"

namespace meshrun {

struct OperatorSignature {
  struct TensorArgument {
    size_t index = 0;
    bool is_list = false;
    bool is_written = false;  // in place, or an out argument
    bool is_out = false;
  };

  explicit OperatorSignature(const c10::FunctionSchema& schema);
  // As operator_named().
  static OperatorSignature of(const std::string& name);

  size_t num_arguments = 0;
  size_t num_returns = 0;
  std::vector<TensorArgument> tensors;
  // The argument that a result is; -1: a new value.
  std::vector<int> returned_argument;
  size_t num_written = 0;  // arguments, in place and out
  // A result shares memory with an argument that is not written.
  bool is_view = false;
  // The argument that says in which order the result lies; -1: there is none.
  int memory_format = -1;
};

// Kind of a C++ argument in a schema, of those that typed kernels take.
template <typename Argument>
constexpr c10::TypeKind kTypeKind =
    std::is_same_v<std::decay_t<Argument>, at::Tensor>   ? c10::TypeKind::TensorType
    : std::is_same_v<std::decay_t<Argument>, at::Scalar> ? c10::TypeKind::NumberType
                                                         : c10::TypeKind::BoolType;

// Whether the schema has arguments of these kinds and one tensor as its result. `in_place`: it
// writes the first argument alone and returns it; else it writes and aliases none.
bool has_form(const c10::FunctionSchema& schema, std::initializer_list<c10::TypeKind> kinds,
              bool in_place);

// "aten::add.Tensor". Absent, and c10::Error, where LibTorch does not know the name.
std::optional<c10::OperatorHandle> find_operator(const std::string& name);
c10::OperatorHandle operator_named(const std::string& name);

// All defined tensors among the last `count` values, those in lists too, in order.
void for_each_tensor(const torch::jit::Stack& stack, size_t count,
                     const std::function<void(const at::Tensor&)>& call);
// Replaces them.
void replace_tensors(torch::jit::Stack& stack, size_t count,
                     const std::function<at::Tensor(const at::Tensor&)>& call);

}  // namespace meshrun
