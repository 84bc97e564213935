#include "parallel/shard/dispatch/fallback.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "c10/util/Exception.h"
#include "fmt/format.h"
#include "parallel/comm/interface/call_comparer.h"
#include "parallel/shard/dispatch/first_time.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/dispatch/write_back.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/library.h"

namespace meshrun {
namespace {

using torch::jit::Stack;

std::string name_of(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

bool is_strict() {
  const char* strict = std::getenv("MESHRUN_SHARD_STRICT");
  return strict != nullptr && std::string(strict) == "1";
}

void announce_gather(const c10::OperatorHandle& op, int64_t bytes) {
  const std::string name = name_of(op);
  if (is_strict()) {
    throw MissingShardRuleError(
        fmt::format("{} has no rule for sharded tensors, and MESHRUN_SHARD_STRICT=1 forbids to "
                    "gather its arguments ({} bytes): redistribute them to Replicate, or register "
                    "a handler",
                    name, bytes));
  }
  static auto* first_time = new FirstTime;
  if (!(*first_time)(name)) return;
  TORCH_WARN(name, " has no rule for sharded tensors: its arguments are gathered on every rank (",
             bytes, " bytes this time)");
}

// What an operator wrote into the gathered copy goes back to the local tensor.
void write_gathered(const at::Tensor& tensor, const at::Tensor& written) {
  ShardTensorImpl* impl = shard_impl(tensor);
  const SpecPtr whole = replicated_spec(impl->spec()->mesh(), written.sizes());
  if (written.sizes() != at::IntArrayRef(impl->spec()->global_shape())) {
    impl->replace(written, whole);
    return;
  }
  write_back(tensor, written, whole);
}

// By LibTorch's own tag. Attention and recurrent layers have it too, and draw for dropout alone.
bool draws_random_numbers(const c10::OperatorHandle& op, const Stack& stack) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const c10::IValue* values = stack.data() + (stack.size() - arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    if ((name == "dropout_p" || name == "dropout") && values[i].isDouble()) {
      return values[i].toDouble() > 0;
    }
  }
  return true;
}

// Takes part with the problem alone, which is then the error of all ranks, also of those that pass
// plain tensors. Where the group's backend does not compare calls nobody else hears of it.
[[noreturn]] void refuse_collective(const c10::OperatorHandle& op, const Stack& stack) {
  const std::string& name = op.schema().name();
  const std::string problem =
      fmt::format("{} takes local tensors: pass ShardTensor::to_local()", name);
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const c10::IValue* values = stack.data() + (stack.size() - arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "process_group") continue;
    const auto group = values[i].toCustomClass<c10d::ProcessGroup>();
    const ComparingBackend comparer = cpu_comparer_of(*group);
    if (!comparer) break;
    comparer->compare({.what = name, .problem = problem})->wait();
  }
  throw ShardTensorError(problem);
}

void fallback(const c10::OperatorHandle& op, Stack* stack) {
  const std::string& name = op.schema().name();
  if (name.starts_with("c10d::")) refuse_collective(op, *stack);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
    return;
  }
  run_replicated(op, stack, Announce::kWarn);
}

}  // namespace

at::Tensor gathered(const at::Tensor& tensor) {
  const ShardTensorImpl* impl = shard_impl(tensor);
  if (impl == nullptr) return tensor;
  const SpecPtr& spec = impl->spec();
  return redistribute_local(impl->local(), spec,
                            replicated_spec(spec->mesh(), spec->global_shape()));
}

ShardMesh::Ptr mesh_of(const c10::OperatorHandle& op, const Stack& stack) {
  SameMesh mesh(op.schema().name().c_str());
  for_each_tensor(stack, op.schema().arguments().size(),
                  [&](const at::Tensor& tensor) { mesh.add(tensor); });
  return mesh.get();
}

void check_plain_operands(const c10::OperatorHandle& op, const OperatorSignature& signature,
                          const Stack& stack) {
  const std::string& name = op.schema().name();
  const auto check = [&](const at::Tensor& tensor) {
    if (tensor.defined() && !is_shard_tensor(tensor)) check_promotion(tensor, name.c_str());
  };
  const c10::IValue* values = stack.data() + (stack.size() - signature.num_arguments);
  for (const OperatorSignature::TensorArgument& argument : signature.tensors) {
    if (argument.is_written) continue;
    for_each_tensor({values[argument.index]}, 1, check);
  }
}

void run_replicated(const c10::OperatorHandle& op, Stack* stack, Announce announce) {
  if (draws_random_numbers(op, *stack)) {
    throw MissingShardRuleError(
        fmt::format("{} draws random numbers and has no rule for sharded tensors: each rank would "
                    "draw other numbers for what all of them hold; call it on to_local(), on one "
                    "rank",
                    name_of(op)));
  }
  const OperatorSignature signature(op.schema());
  if (signature.is_view) {
    throw MissingShardRuleError(
        fmt::format("{} has no rule for sharded tensors, and a gathered copy would not be a view: "
                    "redistribute to Replicate and take to_local()",
                    name_of(op)));
  }
  const ShardMesh::Ptr mesh = mesh_of(op, *stack);
  const size_t count = signature.num_arguments;
  check_plain_operands(op, signature, *stack);
  int64_t bytes = 0;
  bool on_meta = false;  // where only shapes are asked for, nothing is sent
  for_each_tensor(*stack, count, [&](const at::Tensor& tensor) {
    on_meta |= is_shard_tensor(tensor) && tensor.device().is_meta();
    if (is_shard_tensor(tensor) && !spec_of(tensor)->is_replicated()) {
      bytes += tensor.numel() * static_cast<int64_t>(tensor.element_size());
    }
  });
  if (announce == Announce::kWarn && !on_meta) announce_gather(op, bytes);

  const std::vector<c10::IValue> originals(stack->end() - static_cast<std::ptrdiff_t>(count),
                                           stack->end());
  replace_tensors(*stack, count, gathered);
  const std::vector<c10::IValue> whole(stack->end() - static_cast<std::ptrdiff_t>(count),
                                       stack->end());
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.callBoxed(stack);
  }
  for (const OperatorSignature::TensorArgument& argument : signature.tensors) {
    if (!argument.is_written) continue;
    const auto written_back = [](const at::Tensor& original, const at::Tensor& written) {
      if (is_shard_tensor(original)) write_gathered(original, written);
    };
    if (!argument.is_list) {
      written_back(originals[argument.index].toTensor(), whole[argument.index].toTensor());
      continue;
    }
    const auto before = originals[argument.index].toTensorVector();
    const auto after = whole[argument.index].toTensorVector();
    for (size_t i = 0; i < before.size(); ++i) written_back(before[i], after[i]);
  }
  const size_t first = stack->size() - signature.num_returns;
  for (size_t i = 0; i < signature.num_returns; ++i) {
    c10::IValue& value = (*stack)[first + i];
    if (signature.returned_argument[i] >= 0) {
      value = originals[static_cast<size_t>(signature.returned_argument[i])];
      continue;
    }
    if (value.isTensor() && value.toTensor().defined()) {
      value = wrap(value.toTensor(), replicated_spec(mesh, value.toTensor().sizes()));
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> wrapped;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        wrapped.push_back(wrap(tensor, replicated_spec(mesh, tensor.sizes())));
      }
      value = std::move(wrapped);
    }
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace meshrun
