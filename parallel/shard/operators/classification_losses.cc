// Losses over classes: cross entropy and negative log likelihood. All dimensions stay cut. Where
// the classes are (dimension 1, or 0 of a vector), each rank has a summand of every row's loss,
// from the logarithms of its own probabilities: the ranks agree on each row's largest score and
// sum. A mean is weighted by what all ranks count.
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/Reduction.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/nll_loss_nd.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/class_operands.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/reduced.h"

namespace meshrun {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Adds up `counted` over the ranks that cut the target, and the classes too where `of_classes`.
Tensor over_all_ranks(const ClassOperands& operands, const Tensor& counted, bool of_classes) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < operands.spec->ndim(); ++dim) {
    if (of_classes || dim != operands.dim) dims.push_back(dim);
  }
  all_reduce_over(operands.spec, dims, counted, PartialOp::kSum);
  return counted.to(operands.scores.scalar_type());
}

// Sum, over all ranks, of the weights of the targets that are not ignored; without weights, the
// number of these targets. LibTorch divides by it.
Tensor count(const ClassOperands& operands, int64_t ignore_index) {
  const c10::NoGradGuard no_grad;
  const Tensor kept = operands.target.ne(ignore_index);
  if (!operands.weight) return over_all_ranks(operands, kept.sum(at::kDouble), false);
  const Tensor classes = operands.target.to(at::kLong).masked_fill(kept.logical_not(), 0).flatten();
  return over_all_ranks(
      operands, (operands.weight->index_select(0, classes) * kept.flatten()).sum(at::kDouble),
      false);
}

// The loss of local operands, with a reduction.
using LocalLoss = std::function<Tensor(const ClassOperands&, int64_t reduction)>;

// The loss of no scores. All ranks exchange gradients of any order: the graph has every operand, as
// that of a loss has it, quadratic in the scores and linear in the others. It saves a copy of the
// scores, which may be written into: a loss of some rows does not save them.
Tensor zero_of(const ClassOperands& operands) {
  Tensor zero = (operands.scores * 1).square();
  if (operands.target.requires_grad()) zero = zero * operands.target;
  if (operands.weight && operands.weight->requires_grad()) {
    zero = zero * operands.weight_along_classes();
  }
  return zero.sum();
}

double num_rows(const ClassOperands& operands) {
  const int64_t all = c10::multiply_integers(operands.spec->global_shape());
  return static_cast<double>(all) / static_cast<double>(operands.num_classes());
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
    part = part / num_rows(operands);
  }
  return from_local(part.to(dtype), sum_spec(operands.spec));
}

// Targets among the classes of this rank, where classes are cut.
struct OwnTargets {
  Tensor index;  // from this rank's first class; any where `others`
  Tensor ignored;
  Tensor others;  // ignored, or another rank has the class
};

OwnTargets own_targets(const ClassOperands& x, int64_t ignore_index) {
  const auto dim = static_cast<size_t>(x.dim);
  const PieceOf piece{x.spec->box().offsets[dim], x.spec->box().sizes[dim], x.num_classes()};
  const Tensor ignored = x.target.eq(ignore_index);
  const Lookup own = lookup(x.target.to(at::kLong).masked_fill(ignored, 0), piece, false);
  return {own.index, ignored, own.absent.logical_or(ignored)};
}

// What `values` have at the targets of this rank, and zero for all others. On a rank without
// classes the result has the history of `values` too: all ranks exchange gradients.
Tensor at_targets(const Tensor& values, int64_t dim, const OwnTargets& targets) {
  const Tensor rows = values.size(dim) == 0
                          ? values.sum(dim)
                          : values.gather(dim, targets.index.unsqueeze(dim)).squeeze(dim);
  return rows.masked_fill(targets.others, 0);
}

// Each rank has a summand of every row's loss, from its own classes.
struct CutLoss {
  Tensor rows;
  Tensor count;  // what a mean divides by
};

CutLoss loss_at_targets(const ClassOperands& x, int64_t reduction, int64_t ignore_index,
                        double label_smoothing) {
  const OwnTargets targets = own_targets(x, ignore_index);
  CutLoss loss{-at_targets(x.scores, x.dim, targets), {}};
  Tensor weights;
  if (x.weight) {
    weights = at_targets(x.weight_along_classes().expand_as(x.scores), x.dim, targets);
    loss.rows = loss.rows * weights;
  }
  if (label_smoothing > 0) {
    const Tensor scores = x.weight ? x.scores * x.weight_along_classes() : x.scores;
    const Tensor smooth = -scores.sum(x.dim).masked_fill(targets.ignored, 0);
    loss.rows = (1 - label_smoothing) * loss.rows +
                smooth * (label_smoothing / static_cast<double>(x.num_classes()));
  }
  if (reduction == at::Reduction::Mean) {
    const c10::NoGradGuard no_grad;
    loss.count = x.weight
                     ? over_all_ranks(x, weights.sum(at::kDouble), true)
                     : over_all_ranks(x, targets.ignored.logical_not().sum(at::kDouble), false);
  }
  return loss;
}

Tensor loss_of_probabilities(const ClassOperands& x, double label_smoothing) {
  Tensor target = x.target;
  if (label_smoothing > 0) {
    target =
        target * (1 - label_smoothing) + label_smoothing / static_cast<double>(x.num_classes());
  }
  Tensor product = x.scores * target;
  if (x.weight) product = product * x.weight_along_classes();
  return -product.sum(x.dim);
}

Tensor loss_of_cut_classes(const ClassOperands& x, const ClassArguments& arguments,
                           int64_t reduction) {
  const CutLoss loss =
      x.has_indices
          ? loss_at_targets(x, reduction, arguments.ignore_index, arguments.label_smoothing)
          : CutLoss{loss_of_probabilities(x, arguments.label_smoothing), at::Tensor()};
  const at::ScalarType dtype = arguments.self.scalar_type();
  if (reduction == at::Reduction::None) {
    return from_local(loss.rows, reduced_spec(x.spec, {x.dim}, /*keepdim=*/false, Partial()))
        .to(dtype);
  }
  Tensor part = loss.rows.sum();
  if (reduction == at::Reduction::Mean) {
    part = x.has_indices ? part / loss.count : part / num_rows(x);
  }
  return from_local(part, sum_spec(x.spec)).to(dtype);
}

Tensor cross_entropy(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
                     int64_t reduction, int64_t ignore_index, double label_smoothing) {
  const ClassArguments arguments{
      "cross_entropy_loss",      self,           target, weight, ignore_index,
      /*is_cross_entropy=*/true, label_smoothing};
  const ClassOperands operands = read_classes(arguments);
  if (operands.has_cut_classes()) return loss_of_cut_classes(operands, arguments, reduction);
  return reduced(operands, reduction, ignore_index, self.scalar_type(),
                 [=](const ClassOperands& x, int64_t how) {
                   return at::cross_entropy_loss(x.scores, x.target, x.weight, how, ignore_index,
                                                 label_smoothing);
                 });
}

Tensor nll(const Tensor& self, const Tensor& target, const OptionalTensor& weight,
           int64_t reduction, int64_t ignore_index) {
  const ClassArguments arguments{"nll_loss",
                                 self,
                                 target,
                                 weight,
                                 ignore_index,
                                 /*is_cross_entropy=*/false,
                                 0};
  const ClassOperands operands = read_classes(arguments);
  if (operands.has_cut_classes()) return loss_of_cut_classes(operands, arguments, reduction);
  return reduced(operands, reduction, ignore_index, self.scalar_type(),
                 [=](const ClassOperands& x, int64_t how) {
                   // LibTorch's formula of the gradient takes no other order of memory.
                   return at::nll_loss_nd(x.scores.contiguous(), x.target, x.weight, how,
                                          ignore_index);
                 });
}

const Movement kCrossEntropy = {
    "any Shard, equal on scores and target; Replicate beside it is cut in place",
    "where classes are cut: two numbers a row, all-reduced; mean: one number, all-reduced. The "
    "result of mean and sum is Partial(sum), as are rows of cut classes",
    "where classes are cut: one number a row, all-reduced"};
const Movement kLikelihood = {
    "any Shard, equal on scores and target; Replicate beside it is cut in place",
    "mean: one number, all-reduced. The result of mean and sum is Partial(sum), as are rows of cut "
    "classes",
    "nothing"};

const bool kRegistered =
    OperatorFamily("losses")
        .above_autograd("aten::cross_entropy_loss", &cross_entropy, kCrossEntropy)
        .above_autograd("aten::nll_loss_nd", &nll, kLikelihood)
        .above_autograd("aten::nll_loss", &nll, kLikelihood)
        .above_autograd("aten::nll_loss2d", &nll, kLikelihood)
        .registered();

}  // namespace
}  // namespace meshrun
