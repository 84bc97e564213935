#include "parallel/shard/dispatch/plain_targets.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "ATen/core/boxing/OperatorKernel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/enum_tag.h"
#include "ATen/core/stack.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/shard/dispatch/fallback.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/tangents.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/library.h"

namespace meshrun {
namespace {

using torch::jit::Stack;

// Where a call that writes a sharded tensor goes on.
constexpr c10::DispatchKeySet kBelowHandlers(c10::DispatchKeySet::FULL_AFTER, kFunctionKey);

// Plain and whole; any other tensor as it is. Memory that is shared counts its writes together.
at::Tensor whole_values(const at::Tensor& tensor) {
  if (!is_shard_tensor(tensor)) return tensor;
  check_no_tangent(tensor, "a write into a plain tensor");
  const SpecPtr& spec = spec_of(tensor);
  const at::Tensor whole =
      redistribute(tensor, replicated_spec(spec->mesh(), spec->global_shape()));
  return wants_gradient(whole) ? to_local(whole) : alias_of(whole);
}

// Whether tensors are written, and all of them are plain.
bool writes_plain_alone(const Stack& stack, const OperatorSignature& signature) {
  const c10::IValue* arguments = stack.data() + (stack.size() - signature.num_arguments);
  bool any_plain = false;
  bool any_sharded = false;
  for (const OperatorSignature::TensorArgument& argument : signature.tensors) {
    if (!argument.is_written) continue;
    for_each_tensor({arguments[argument.index]}, 1, [&](const at::Tensor& target) {
      (is_sharded(target) ? any_sharded : any_plain) = true;
    });
  }
  return any_plain && !any_sharded;
}

void write_plain(const c10::OperatorHandle& op, const OperatorSignature& signature, Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    throw MissingShardRuleError(
        fmt::format("{} would draw other numbers into the plain tensor on each rank: {}", name,
                    kPlainTargetRemedy));
  }
  mesh_of(op, *stack);  // one
  const size_t count = signature.num_arguments;
  if (promotion_mode() != PromotionMode::kSilent && !reads_sharded_numbers_alone(*stack, count)) {
    const c10::IValue* arguments = stack->data() + (stack->size() - count);
    for (const OperatorSignature::TensorArgument& argument : signature.tensors) {
      if (!argument.is_written) continue;
      for_each_tensor({arguments[argument.index]}, 1,
                      [&](const at::Tensor& target) { check_plain_target(target, name.c_str()); });
    }
  }
  replace_tensors(*stack, count, whole_values);
  op.callBoxed(stack);
}

class PlainTargetKernel : public c10::OperatorKernel {
 public:
  explicit PlainTargetKernel(OperatorSignature signature) : signature_(std::move(signature)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (writes_plain_alone(*stack, signature_)) {
      write_plain(op, signature_, stack);
    } else {
      op.redispatchBoxed(keys & kBelowHandlers, stack);
    }
  }

 private:
  const OperatorSignature signature_;
};

// Without a stack where a sharded tensor is written: what optimizers call for each parameter.
template <typename... Rest>
class TypedPlainTarget {
 public:
  TypedPlainTarget(const c10::OperatorHandle& op, OperatorSignature signature)
      : op_(op.typed<at::Tensor&(at::Tensor&, Rest...)>()), signature_(std::move(signature)) {}

  at::Tensor& operator()(c10::DispatchKeySet keys, at::Tensor& self, Rest... rest) const {
    if (is_sharded(self)) return op_.redispatch(keys & kBelowHandlers, self, rest...);
    Stack stack;
    stack.reserve(1 + sizeof...(Rest));
    stack.emplace_back(self);
    (stack.emplace_back(rest), ...);
    write_plain(op_, signature_, &stack);
    return self;
  }

 private:
  const c10::TypedOperatorHandle<at::Tensor&(at::Tensor&, Rest...)> op_;
  const OperatorSignature signature_;
};

template <typename... Rest>
struct PlainTargetForm {
  static std::optional<torch::CppFunction> kernel(const c10::OperatorHandle& op,
                                                  const OperatorSignature& signature) {
    if (!has_form(op.schema(), {c10::TypeKind::TensorType, kTypeKind<Rest>...}, true)) {
      return std::nullopt;
    }
    try {
      return torch::CppFunction(TypedPlainTarget<Rest...>(op, signature));
    } catch (const c10::Error&) {
      return std::nullopt;  // `self` is const, as that of resize_as_sparse_()
    }
  }
};

template <typename... Forms>
torch::CppFunction kernel_of(const c10::OperatorHandle& op, const OperatorSignature& signature) {
  std::optional<torch::CppFunction> typed;
  // The first that fits.
  ((typed = Forms::kernel(op, signature), typed.has_value()) || ...);
  if (typed) return std::move(*typed);
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PlainTargetKernel>(signature));
}

using Tensor = const at::Tensor&;
using Scalar = const at::Scalar&;

// add_.Tensor, copy_, lerp_.Scalar, addcmul_, ...
torch::CppFunction plain_target_kernel(const c10::OperatorHandle& op,
                                       const OperatorSignature& signature) {
  return kernel_of<PlainTargetForm<Tensor>, PlainTargetForm<Tensor, bool>,
                   PlainTargetForm<Tensor, Scalar>, PlainTargetForm<Tensor, Tensor>,
                   PlainTargetForm<Tensor, Tensor, Scalar>>(op, signature);
}

// What LibTorch takes apart ends in operators that have the kernel.
bool has_plain_target_kernel(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (!name.starts_with("aten::") ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return false;
  }
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

// A call that returns a new tensor as well is about that tensor (running statistics).
bool returns_what_it_writes(const OperatorSignature& signature) {
  return signature.tensors.size() > signature.num_written &&
         std::all_of(signature.returned_argument.begin(), signature.returned_argument.end(),
                     [](int argument) { return argument >= 0; });
}

struct Kernels {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<torch::Library>> registered;
  // set_() takes the memory of its source, and there is no whole one.
  std::set<std::string> dropped = {
      "aten::set_", "aten::set_.source_Storage", "aten::set_.source_Storage_storage_offset",
      "aten::set_.source_Tensor", "aten::set_.source_Tensor_storage_offset"};
};

// Never destroyed: they would unregister at the end.
Kernels& kernels() {
  static auto* kernels = new Kernels;
  return *kernels;
}

bool register_plain_target_kernels() {
  const std::lock_guard lock(kernels().mutex);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || !has_plain_target_kernel(*op)) continue;
    const OperatorSignature signature(op->schema());
    std::string full = c10::toString(name);
    if (!returns_what_it_writes(signature) || kernels().dropped.contains(full)) continue;
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kFunctionKey,
                                                    __FILE__, __LINE__);
    library->impl(full.substr(full.find("::") + 2).c_str(), plain_target_kernel(*op, signature));
    kernels().registered.emplace(std::move(full), std::move(library));
  }
  return true;
}

// Families of operators register theirs before or after this.
const bool kRegistered = register_plain_target_kernels();

}  // namespace

bool reads_sharded_numbers_alone(const Stack& stack, size_t num_arguments) {
  bool numbers_alone = true;
  for_each_tensor(stack, num_arguments, [&](const at::Tensor& tensor) {
    numbers_alone &= !is_sharded(tensor) || tensor.dim() == 0;
  });
  return numbers_alone;
}

void drop_plain_target_kernel(const std::string& op) {
  const std::lock_guard lock(kernels().mutex);
  kernels().registered.erase(op);
  kernels().dropped.insert(op);
}

}  // namespace meshrun
