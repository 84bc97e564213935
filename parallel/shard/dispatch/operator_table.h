// The table of what operators do with sharded tensors. A family of operators is one file in
// operators/, which registers its rows when the program starts; docs/shard_tensor.md is printed
// from the table.
//
//   const bool kRegistered =
//       OperatorFamily("matrix products")
//           .below_autograd("aten::mm", &mm, {"Shard of rows or columns", "nothing", "as mm"})
//           .above_autograd("aten::linear", &linear, {...})
//           .registered();
//
//   below_autograd   the kernel sees plain and sharded tensors without history; LibTorch's own
//                    derivative formula runs on sharded tensors. Typed functions, or boxed ones
//   above_autograd   the function runs before autograd records, and makes its own graph, mostly of
//                    to_local(), operators on local tensors, and from_local() (local_map.h). For
//                    composite operators, and where LibTorch's formula costs more than ours
//
// handler_entry.h says what happens before a typed handler runs: autocast, plain operands.
//
// Registration is at program start, or any time for a user's handlers; a later one wins. Threads:
// any. Errors: c10::Error for an operator that LibTorch does not know.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/shard/dispatch/handler_entry.h"
#include "torch/library.h"

namespace meshrun {

// For docs: one phrase each.
struct Movement {
  std::string placements;  // that it takes without moving anything
  std::string forward;     // what moves
  std::string backward;
};

enum class HandlerLevel : uint8_t { kBelowAutograd, kAboveAutograd };

struct OperatorRow {
  std::string family;
  std::string name;  // "aten::add.Tensor"
  HandlerLevel level = HandlerLevel::kBelowAutograd;
  Movement movement;
};

void register_operator(OperatorRow row, torch::CppFunction kernel);
// In order of families and names.
std::vector<OperatorRow> registered_operators();
// Full names of an operator's overloads that take a tensor, and of those in place, without the
// composite ones. Raises c10::Error if none exists.
std::vector<std::string> overloads_of(const std::string& op);
// As docs/shard_tensor.md shows them: one table a family, operators with equal movements in one
// row.
std::string operators_as_markdown();

class OperatorFamily {
 public:
  explicit OperatorFamily(std::string name) : name_(std::move(name)) {}

  template <typename Function>
  OperatorFamily& below_autograd(const std::string& op, Function&& function, Movement movement) {
    register_operator({name_, op, HandlerLevel::kBelowAutograd, std::move(movement)},
                      below_autograd_kernel(op, std::forward<Function>(function)));
    return *this;
  }
  template <typename Function>
  OperatorFamily& above_autograd(const std::string& op, Function&& function, Movement movement) {
    register_operator({name_, op, HandlerLevel::kAboveAutograd, std::move(movement)},
                      above_autograd_kernel(op, std::forward<Function>(function)));
    return *this;
  }
  // Boxed kernels for all overloads of these operators ("aten::add"), in place and out= too:
  // `make_kernel` makes the kernel of one ("aten::add_.Tensor").
  template <typename MakeKernel>
  OperatorFamily& boxed(std::initializer_list<const char*> ops, const MakeKernel& make_kernel,
                        const Movement& movement) {
    for (const char* op : ops) {
      for (const std::string& overload : overloads_of(op)) {
        register_operator({name_, overload, HandlerLevel::kBelowAutograd, movement},
                          torch::CppFunction::makeFromBoxedFunctor(make_kernel(overload)));
      }
    }
    return *this;
  }
  bool registered() const { return true; }

 private:
  std::string name_;
};

}  // namespace meshrun
