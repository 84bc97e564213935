#include "parallel/shard/dispatch/pointwise.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/dispatch/fallback.h"
#include "parallel/shard/dispatch/plain_targets.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/write_back.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/csrc/autograd/graph_task.h"

namespace meshrun {
namespace {

using torch::jit::Stack;

c10::IValue* arguments_of(Stack& stack, const OperatorSignature& signature) {
  return stack.data() + (stack.size() - signature.num_arguments);
}

// How results lie: a view of `first`, or as that lies, or as the caller asks. A plain operand does
// not count: it may lie otherwise on each rank.
struct Order {
  at::Tensor first;
  at::MemoryFormat format = at::MemoryFormat::Preserve;
};

// Before the call, which takes the arguments.
Order order_of(const Stack& stack, const OperatorSignature& signature) {
  const c10::IValue* arguments = stack.data() + (stack.size() - signature.num_arguments);
  Order order;
  for (const OperatorSignature::TensorArgument& argument : signature.tensors) {
    const c10::IValue& value = arguments[argument.index];
    if (argument.is_out || !value.isTensor() || !is_shard_tensor(value.toTensor())) continue;
    order.first = value.toTensor();
    break;
  }
  if (signature.memory_format >= 0) {
    order.format = arguments[signature.memory_format].toOptional<at::MemoryFormat>().value_or(
        at::MemoryFormat::Preserve);
  }
  return order;
}

// Results are of one layout, or they are arguments that were written.
void wrap_results(Stack& stack, const OperatorSignature& signature, const SpecPtr& spec,
                  std::vector<at::Tensor>& written, const Order& order) {
  const size_t first = stack.size() - signature.num_returns;
  size_t next = 0;
  for (size_t i = 0; i < signature.num_returns; ++i) {
    c10::IValue& value = stack[first + i];
    if (signature.returned_argument[i] >= 0) {
      value = std::move(written[next++]);
    } else if (value.isTensor() && value.toTensor().defined()) {
      at::Tensor result = std::move(value).toTensor();
      // The second result may be for the CPU's backward pass alone, and empty elsewhere
      // (log_sigmoid_forward's buffer): then nobody reads its values.
      if (i > 0 && result.sizes() != at::IntArrayRef(spec->local_shape())) {
        result = at::zeros({}, result.options()).expand(spec->local_shape());
      }
      value = signature.is_view ? wrap_view(std::move(result), spec, order.first.strides())
                                : wrap_like(std::move(result), spec, order.first, order.format);
    }
  }
}

// The part of a plain tensor, which all ranks have alike.
at::Tensor part_of(const at::Tensor& plain, const ShardMesh::Ptr& mesh, const ShardLayout& layout) {
  if (layout.is_replicated() || plain.dim() == 0) return plain;
  return redistribute_local(plain, replicated_spec(mesh, plain.sizes()), make_spec(mesh, layout));
}

}  // namespace

PointwiseKernel::PointwiseKernel(const std::string& name, Linearity linearity)
    : signature_(OperatorSignature::of(name)), linearity_(linearity) {}

bool PointwiseAgreement::partial_stays(Linearity linearity) const {
  const bool is_linear = num_read_ == 1
                             ? linearity == Linearity::kFirst || linearity == Linearity::kProduct
                             : linearity == Linearity::kSum;
  const Placements& placements = (*spec_)->placements();
  return is_linear && std::all_of(placements.begin(), placements.end(), [](const auto& placement) {
           return !placement.is_partial() || placement.op() == PartialOp::kSum ||
                  placement.op() == PartialOp::kAvg;
         });
}

const SpecPtr* PointwiseKernel::agreed_spec(const Stack& stack) const {
  const c10::IValue* arguments = stack.data() + (stack.size() - signature_.num_arguments);
  PointwiseAgreement agreement;
  for (const OperatorSignature::TensorArgument& argument : signature_.tensors) {
    const c10::IValue& value = arguments[argument.index];
    if (!value.isTensor()) continue;
    agreement.see(static_cast<const c10::TensorImpl*>(value.unsafeToTensorImpl()),
                  !argument.is_out);
  }
  return agreement.spec(linearity_);
}

void PointwiseKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr* agreed = agreed_spec(*stack);
  if (agreed == nullptr) {
    run_aligned(op, stack);
    return;
  }
  const SpecPtr spec = *agreed;
  c10::IValue* arguments = arguments_of(*stack, signature_);
  std::vector<at::Tensor> written;
  const Order order = order_of(*stack, signature_);
  for (const OperatorSignature::TensorArgument& argument : signature_.tensors) {
    c10::IValue& value = arguments[argument.index];
    if (!value.isTensor()) continue;
    const auto* impl = static_cast<const ShardTensorImpl*>(value.unsafeToTensorImpl());
    at::Tensor local = impl->local();
    if (argument.is_written) written.push_back(std::move(value).toTensor());
    value = std::move(local);
  }
  op.callBoxed(stack);
  wrap_results(*stack, signature_, spec, written, order);
}

void PointwiseKernel::run_aligned(const c10::OperatorHandle& op, Stack* stack) const {
  if (signature_.num_written > 1) {
    run_replicated(op, stack, Announce::kWarn);
    return;
  }
  const ShardMesh::Ptr mesh = mesh_of(op, *stack);
  c10::IValue* arguments = arguments_of(*stack, signature_);
  std::vector<Operand> operands;
  std::vector<size_t> places;
  int fixed = -1;
  for (const OperatorSignature::TensorArgument& argument : signature_.tensors) {
    const c10::IValue& value = arguments[argument.index];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    const ShardTensorImpl* impl = shard_impl(tensor);
    if (impl == nullptr) {
      if (argument.is_written) {
        // Where function handlers are off: plain_targets.h has all other calls. The engine adds a
        // sharded gradient of a leaf to its plain one, and a factor is the same on all ranks.
        if ((linearity_ == Linearity::kSum && torch::autograd::get_current_graph_task_id() >= 0) ||
            reads_sharded_numbers_alone(*stack, signature_.num_arguments)) {
          replace_tensors(*stack, signature_.num_arguments, gathered);
          op.callBoxed(stack);
          return;
        }
        refuse_plain_target(op.schema().name().c_str());
      }
      check_promotion(tensor, op.schema().name().c_str());
    }
    if (argument.is_written) fixed = static_cast<int>(operands.size());
    operands.push_back({impl == nullptr ? nullptr : &impl->spec()->layout(), tensor.sizes().vec(),
                        !argument.is_out});
    places.push_back(argument.index);
  }
  // An out argument of another shape is made anew.
  std::vector<Operand> readers = operands;
  bool remade = false;
  if (fixed >= 0) {
    const auto at = static_cast<size_t>(fixed);
    readers.erase(readers.begin() + static_cast<std::ptrdiff_t>(at));
    remade = !readers.empty() &&
             with_shard_errors([&] { return broadcast_shape(readers); }) != operands[at].shape &&
             signature_.tensors.back().is_out;
  }
  const BroadcastLayout common = with_shard_errors([&] {
    return remade ? broadcast(mesh->shape(), readers, linearity_)
                  : broadcast(mesh->shape(), operands, linearity_, fixed);
  });
  const Order order = order_of(*stack, signature_);
  std::vector<at::Tensor> written;
  ShardTensorImpl* target = nullptr;
  SpecPtr target_spec;
  at::Tensor target_local;
  size_t reader = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    c10::IValue& value = arguments[places[i]];
    const at::Tensor tensor = value.toTensor();
    const bool is_target = static_cast<int>(i) == fixed;
    if (is_target && remade) {
      target = shard_impl(tensor);
      target_spec = make_spec(mesh, common.result);
      target_local = target->local().new_empty(target_spec->local_shape());
      written.push_back(tensor);
      value = target_local;
      continue;
    }
    const ShardLayout& layout = common.operands[remade ? reader : i];
    ++reader;
    if (const ShardTensorImpl* impl = shard_impl(tensor)) {
      const SpecPtr& from = impl->spec();
      const SpecPtr to = from->layout() == layout ? from : make_spec(mesh, layout);
      // What an out argument had before is not read.
      at::Tensor local = operands[i].is_read || same(from, to)
                             ? redistribute_local(impl->local(), from, to)
                             : impl->local().new_empty(to->local_shape());
      if (is_target) {
        target = shard_impl(tensor);
        target_spec = to;
        target_local = local;
        written.push_back(tensor);
      }
      value = std::move(local);
    } else {
      value = part_of(tensor, mesh, layout);
    }
  }
  op.callBoxed(stack);
  if (remade) {
    target->replace(target_local, target_spec);
  } else if (target != nullptr && !same(target->spec(), target_spec)) {
    write_back(written.front(), target_local, target_spec);
  }
  wrap_results(*stack, signature_, make_spec(mesh, common.result), written, order);
}

PointwiseFamily& PointwiseFamily::named(std::initializer_list<const char*> ops, Linearity linearity,
                                        const Movement& movement) {
  for (const char* op : ops) {
    for (const std::string& overload : overloads_of(op)) {
      register_operator({name_, overload, HandlerLevel::kBelowAutograd, movement},
                        pointwise_function(overload, linearity));
    }
  }
  return *this;
}

}  // namespace meshrun
