#include "parallel/shard/operators/batchwise.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/core/DimVector.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/dispatch/fallback.h"
#include "parallel/shard/dispatch/operator_signature.h"
#include "parallel/shard/layout/broadcast.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "third_party/libtorch/shims.h"

namespace meshrun {
namespace {

using torch::jit::Stack;

// Batch dimensions of `layout`, without Partial.
ShardLayout batch_layout(const ShardLayout& layout, int64_t core) {
  const int64_t ndim = layout.ndim() - core;
  Placements placements = layout.placements();
  for (Placement& placement : placements) {
    if (!placement.is_shard() || placement.dim() >= ndim) placement = Replicate();
  }
  std::vector<DimCut> cuts(layout.cuts().begin(), layout.cuts().begin() + ndim);
  return ShardLayout::with_cuts(layout.mesh_shape(), std::move(placements), std::move(cuts));
}

// The batch of that layout, and the last dimensions of `shape`, whole.
SpecPtr with_core(const ShardMesh::Ptr& mesh, const ShardLayout& batch, at::IntArrayRef shape) {
  std::vector<DimCut> cuts = batch.cuts();
  for (size_t dim = cuts.size(); dim < shape.size(); ++dim) cuts.push_back({{}, {shape[dim]}});
  return make_spec(mesh,
                   ShardLayout::with_cuts(mesh->shape(), batch.placements(), std::move(cuts)));
}

// _linalg_solve_ex takes a vector for each matrix, too, as LibTorch tells it from a matrix.
bool are_vectors(const at::Tensor& matrices, const at::Tensor& other) {
  return other.dim() == 1 ||
         (matrices.dim() == other.dim() + 1 &&
          matrices.sizes().slice(0, static_cast<size_t>(other.dim())) == other.sizes());
}

// LibTorch factors the transpose of contiguous matrices, and its derivative formulas ask the whole
// tensor again which it was.
at::Tensor ordered_as(const at::Tensor& whole, const at::Tensor& local) {
  if (local.dim() < 2) return local;
  return whole.is_contiguous() ? local.contiguous() : local.mT().contiguous().mT();
}

void check_gradient_batch(const c10::OperatorHandle& op, const std::vector<Operand>& operands) {
  std::vector<int64_t> batch;
  for (size_t i = 1; i < operands.size(); ++i) batch = at::infer_size(batch, operands[i].shape);
  if (operands[0].shape == batch) return;
  throw ShardTensorError(
      fmt::format("{} got gradients of a batch of [{}] for operands of a batch of [{}]: take "
                  "derivatives one by "
                  "one, not by vmap or jacrev, which PyTorch itself has wrong here",
                  op.schema().name(), fmt::join(operands[0].shape, ", "), fmt::join(batch, ", ")));
}

class BatchwiseKernel : public c10::OperatorKernel {
 public:
  explicit BatchwiseKernel(BatchwiseRule rule)
      : rule_(std::move(rule)), signature_(OperatorSignature::of(rule_.name)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    check_plain_operands(op, signature_, *stack);
    const ShardMesh::Ptr mesh = mesh_of(op, *stack);
    c10::IValue* arguments = stack->data() + (stack->size() - signature_.num_arguments);
    std::vector<at::Tensor> tensors;
    for (const OperatorSignature::TensorArgument& argument : signature_.tensors) {
      tensors.push_back(arguments[argument.index].toTensor());
    }
    const std::vector<int64_t> cores = cores_of(tensors);
    std::vector<ShardLayout> batches;
    batches.reserve(tensors.size());
    std::vector<Operand> operands;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto batch =
          tensors[i].sizes().slice(0, static_cast<size_t>(tensors[i].dim() - cores[i]));
      const ShardTensorImpl* impl = shard_impl(tensors[i]);
      if (impl != nullptr) batches.push_back(batch_layout(impl->spec()->layout(), cores[i]));
      operands.push_back({impl == nullptr ? nullptr : &batches.back(), batch.vec()});
    }
    const BroadcastLayout common =
        with_shard_errors([&] { return broadcast(mesh->shape(), operands, Linearity::kNone); });
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ShardTensorImpl* impl = shard_impl(tensors[i]);
      const SpecPtr from =
          impl == nullptr ? replicated_spec(mesh, tensors[i].sizes()) : impl->spec();
      arguments[signature_.tensors[i].index] =
          redistribute_local(impl == nullptr ? tensors[i] : impl->local(), from,
                             with_core(mesh, common.operands[i], tensors[i].sizes()));
    }
    if (rule_.keeps_order) {
      c10::IValue& first = arguments[signature_.tensors[0].index];
      first = ordered_as(tensors[0], first.toTensor());
    }
    if (rule_.solves && cores[1] > 1) {
      // A rank's batch may have the extent that would make vectors of them.
      at::Tensor other = arguments[signature_.tensors[1].index].toTensor();
      while (other.dim() < tensors[0].dim()) other = other.unsqueeze(0);
      arguments[signature_.tensors[1].index] = other;
    }
    if (rule_.of_one_batch) {
      check_gradient_batch(op, operands);
      const std::vector<int64_t> batch = common.result.box(mesh->coordinate()).sizes;
      for (size_t i = 0; i < tensors.size(); ++i) {
        c10::IValue& value = arguments[signature_.tensors[i].index];
        const at::Tensor local = std::move(value).toTensor();
        at::DimVector shape(batch.begin(), batch.end());
        const at::IntArrayRef core =
            local.sizes().slice(static_cast<size_t>(local.dim() - cores[i]));
        shape.append(core.begin(), core.end());
        value = local.expand(shape).contiguous();
      }
    }
    op.callBoxed(stack);
    const size_t first = stack->size() - signature_.num_returns;
    for (size_t i = 0; i < signature_.num_returns; ++i) {
      c10::IValue& value = (*stack)[first + i];
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      const BatchwiseRule::Result& result = rule_.results[i];
      const ShardLayout& batch = result.batch_of < 0
                                     ? common.result
                                     : common.operands[static_cast<size_t>(result.batch_of)];
      const at::Tensor local = std::move(value).toTensor();
      // What was not asked for (eigenvectors, say) comes without elements and without a batch.
      const bool is_absent = local.dim() < batch.ndim() + std::min<int64_t>(result.core, 1) ||
                             (local.dim() == 1 && local.numel() == 0 && result.core > 1);
      value = wrap(local, is_absent ? replicated_spec(mesh, local.sizes())
                                    : with_core(mesh, batch, local.sizes()));
    }
  }

 private:
  std::vector<int64_t> cores_of(const std::vector<at::Tensor>& tensors) const {
    std::vector<int64_t> cores = rule_.operands;
    if (rule_.solves && are_vectors(tensors[0], tensors[1])) cores[1] = 1;
    // With too few dimensions LibTorch's own check raises.
    for (size_t i = 0; i < cores.size(); ++i) cores[i] = std::min(cores[i], tensors[i].dim());
    return cores;
  }

  const BatchwiseRule rule_;
  const OperatorSignature signature_;
};

}  // namespace

bool register_batchwise(const char* family, const std::vector<BatchwiseRule>& rules) {
  const Movement batches = {
      "any Shard of batch dimensions, equal on all operands; Replicate beside it is cut in place",
      "a Partial is reduced; a cut dimension of the matrices or images is gathered",
      "the same operators"};
  for (const BatchwiseRule& rule : rules) {
    if (!libtorch::has_operator(rule.name)) continue;
    register_operator(
        {family, rule.name, HandlerLevel::kBelowAutograd, batches},
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BatchwiseKernel>(rule)));
  }
  return true;
}

}  // namespace meshrun
