// Losses over classes: cross entropy and negative log likelihood. The class dimension (1, or 0 of a
// vector) is whole on every rank; all others stay cut. A mean is weighted by what all ranks count.
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/Reduction.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/nll_loss_nd.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/aligned.h"

namespace meshrun {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Operands on this rank, of one layout.
struct ClassOperands {
  SpecPtr spec;  // of the scores; `dim` is whole
  int64_t dim;
  Tensor scores;
  Tensor target;
  OptionalTensor weight;
  bool has_indices;  // the target's elements are classes, not probabilities
};

bool is_cut(const SpecPtr& spec) {
  for (const Placement& placement : spec->placements()) {
    if (placement.is_shard()) return true;
  }
  return false;
}

ClassOperands read(const char* name, const Tensor& self, const Tensor& target,
                   const OptionalTensor& weight) {
  static const auto* undefined = new Tensor;
  const ShardMesh::Ptr mesh = mesh_of({&self, &target, weight ? &*weight : undefined}, name);
  ClassOperands operands;
  operands.dim = self.dim() == 1 ? 0 : 1;
  operands.has_indices = !at::isFloatingType(target.scalar_type());
  const Tensor scores = promote(self, mesh);
  const Tensor goal = promote(target, mesh);
  operands.spec = with_whole_dims(spec_of(scores), {operands.dim});
  const bool fits =
      operands.has_indices ? target.dim() == self.dim() - 1 : target.sizes() == self.sizes();
  if (!is_cut(operands.spec) && fits) {
    // Scores that all ranks have are cut where they lie, as the target is.
    const SpecPtr of_target = without_partial(spec_of(goal));
    operands.spec = operands.has_indices
                        ? insert_dim(of_target, operands.dim, self.size(operands.dim))
                        : with_whole_dims(of_target, {operands.dim});
  }
  const SpecPtr target_layout =
      operands.has_indices ? drop_dim(operands.spec, operands.dim) : operands.spec;
  if (at::IntArrayRef(target_layout->global_shape()) != target.sizes()) {
    throw ShardTensorError(
        c10::str(name, " got scores of ", self.sizes(), " and a target of ", target.sizes()));
  }
  operands.scores = to_local(redistribute(scores, operands.spec));
  operands.target = to_local(redistribute(goal, target_layout));
  if (weight && weight->defined()) {
    const Tensor promoted = promote(*weight, mesh);
    const SpecPtr whole = replicated_spec(mesh, weight->sizes());
    operands.weight =
        to_local(redistribute(promoted, whole), partial_where_replicated(whole, operands.spec));
  }
  // Sums of many are taken in float32.
  if (at::isReducedFloatingType(operands.scores.scalar_type())) {
    operands.scores = operands.scores.to(at::kFloat);
    if (operands.weight) operands.weight = operands.weight->to(at::kFloat);
    if (!operands.has_indices) operands.target = operands.target.to(at::kFloat);
  }
  return operands;
}

// Sum, over all ranks, of the weights of the targets that are not ignored; without weights, the
// number of these targets. LibTorch divides by it.
Tensor count(const ClassOperands& operands, int64_t ignore_index) {
  const c10::NoGradGuard no_grad;
  const Tensor kept = operands.target.ne(ignore_index);
  Tensor counted;
  if (!operands.weight) {
    counted = kept.sum(at::kDouble);
  } else {
    const Tensor classes = operands.target.masked_fill(kept.logical_not(), 0).flatten();
    counted = (operands.weight->index_select(0, classes) * kept.flatten()).sum(at::kDouble);
  }
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < operands.spec->ndim(); ++dim) dims.push_back(dim);
  all_reduce_over(operands.spec, dims, counted, PartialOp::kSum);
  return counted.to(operands.scores.scalar_type());
}

// The loss of local operands, with a reduction.
using LocalLoss = std::function<Tensor(const ClassOperands&, int64_t reduction)>;

// The loss of no scores. All ranks exchange gradients of any order: the graph has every operand, as
// that of a loss has it, quadratic in the scores and linear in the others.
Tensor zero_of(const ClassOperands& operands) {
  Tensor zero = operands.scores.square();
  if (operands.target.requires_grad()) zero = zero * operands.target;
  if (operands.weight && operands.weight->requires_grad()) {
    std::vector<int64_t> along_classes(static_cast<size_t>(zero.dim()), 1);
    along_classes[static_cast<size_t>(operands.dim)] = operands.weight->numel();
    zero = zero * operands.weight->view(along_classes);
  }
  return zero.sum();
}

Tensor reduced(const ClassOperands& operands, int64_t reduction, int64_t ignore_index,
               at::ScalarType dtype, const LocalLoss& loss) {
  if (reduction == at::Reduction::None) {
    return from_local(loss(operands, reduction).to(dtype), drop_dim(operands.spec, operands.dim));
  }
  Tensor part =
      operands.scores.numel() == 0 ? zero_of(operands) : loss(operands, at::Reduction::Sum);
  if (reduction == at::Reduction::Mean && operands.has_indices) {
    part = part / count(operands, ignore_index);
  } else if (reduction == at::Reduction::Mean) {
    const int64_t classes = operands.spec->global_shape()[static_cast<size_t>(operands.dim)];
    const int64_t all = c10::multiply_integers(operands.spec->global_shape());
    part = part / (static_cast<double>(all) / static_cast<double>(classes));
  }
  return from_local(part.to(dtype), sum_spec(operands.spec));
}

Tensor cross_entropy(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                     int64_t reduction, int64_t ignore_index, double label_smoothing) {
  return reduced(read("cross_entropy_loss", self, target, weight), reduction, ignore_index,
                 self.scalar_type(), [=](const ClassOperands& x, int64_t how) {
                   return at::cross_entropy_loss(x.scores, x.target, x.weight, how, ignore_index,
                                                 label_smoothing);
                 });
}

Tensor nll(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
           int64_t reduction, int64_t ignore_index) {
  return reduced(read("nll_loss", self, target, weight), reduction, ignore_index,
                 self.scalar_type(), [=](const ClassOperands& x, int64_t how) {
                   // LibTorch's formula of the gradient takes no other order of memory.
                   return at::nll_loss_nd(x.scores.contiguous(), x.target, x.weight, how,
                                          ignore_index);
                 });
}

const Movement kClasses = {
    "any Shard but of the class dimension, equal on scores and target; Replicate beside it is cut "
    "in place",
    "a cut class dimension is gathered; mean: one number, all-reduced. The result of mean and sum "
    "is Partial(sum)",
    "nothing; the gradient of gathered scores is cut in place"};

const bool kRegistered = OperatorFamily("losses")
                             .above_autograd("aten::cross_entropy_loss", &cross_entropy, kClasses)
                             .above_autograd("aten::nll_loss_nd", &nll, kClasses)
                             .above_autograd("aten::nll_loss", &nll, kClasses)
                             .above_autograd("aten::nll_loss2d", &nll, kClasses)
                             .registered();

}  // namespace
}  // namespace meshrun
