#include "parallel/shard/operators/class_operands.h"

#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/log_softmax.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/reduced.h"

namespace meshrun {
namespace {

using at::Tensor;

bool cuts_anything(const SpecPtr& spec) {
  for (const Placement& placement : spec->placements()) {
    if (placement.is_shard()) return true;
  }
  return false;
}

// LibTorch's own checks run where a rank has rows alone, and its sentences are these.
void check_arguments(const ClassArguments& x, bool has_indices) {
  const at::ScalarType dtype = x.target.scalar_type();
  TORCH_CHECK(x.self.dim() > 0, x.name, ": Expected 1 or more dimensions (got 0)");
  TORCH_CHECK(at::isFloatingType(x.self.scalar_type()), x.name, " not implemented for '",
              x.self.scalar_type(), "'");
  TORCH_CHECK(!(x.label_smoothing > 1),
              "label_smoothing must be between 0.0 and 1.0. Got: ", x.label_smoothing);
  if (has_indices) {
    TORCH_CHECK(dtype == at::kLong || (dtype == at::kByte && x.self.dim() <= 2),
                "expected target dtype to be Long or Byte, but got ", dtype);
  } else {
    TORCH_CHECK(at::isFloatingType(dtype),
                "Expected floating point type for target with class probabilities, got ", dtype);
    TORCH_CHECK(x.ignore_index < 0, "ignore_index is not supported for floating point target");
  }
  if (!x.weight || !x.weight->defined()) return;
  const int64_t classes = x.self.size(x.self.dim() == 1 ? 0 : 1);
  TORCH_CHECK(x.weight->dim() == 1 && x.weight->numel() == classes, x.name,
              ": weight tensor should be defined either for all ", classes,
              " classes or no classes but got weight tensor of shape: ", x.weight->sizes());
  if (!has_indices) return;
  TORCH_CHECK(x.weight->scalar_type() == x.self.scalar_type(), "expected scalar type ",
              x.self.scalar_type(), " but found ", x.weight->scalar_type());
  TORCH_CHECK(!(x.weight->requires_grad() && c10::GradMode::is_enabled()), x.name,
              " is not differentiable with respect to argument 'weight'. This input cannot have "
              "requires_grad True.");
}

// Scores stay where they are cut. Those that all ranks have are cut as the target is.
SpecPtr layout_of(const Tensor& scores, const Tensor& target, int64_t dim, bool has_indices) {
  SpecPtr spec = without_partial(spec_of(scores));
  const bool fits =
      has_indices ? target.dim() == scores.dim() - 1 : target.sizes() == scores.sizes();
  if (!cuts_anything(spec) && fits) {
    const SpecPtr of_target = without_partial(spec_of(target));
    spec = has_indices ? insert_dim(of_target, dim, scores.size(dim)) : of_target;
  }
  return scores.size(dim) > 0 ? spec : with_whole_dims(spec, {dim});
}

// Weights are cut as classes are.
SpecPtr weight_layout(const SpecPtr& spec, int64_t dim) {
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    placement = placement.is_shard(dim) ? Placement(Shard(0)) : Placement(Replicate());
  }
  const DimCut& cut = spec->layout().cuts()[static_cast<size_t>(dim)];
  return make_spec(spec->mesh(),
                   ShardLayout::with_cuts(spec->mesh()->shape(), std::move(placements), {cut}));
}

}  // namespace

Tensor ClassOperands::weight_along_classes() const {
  std::vector<int64_t> shape(static_cast<size_t>(scores.dim()), 1);
  shape[static_cast<size_t>(dim)] = weight->numel();
  return weight->view(shape);
}

ClassOperands read_classes(const ClassArguments& x) {
  static const auto* undefined = new Tensor;
  const ShardMesh::Ptr mesh =
      mesh_of({&x.self, &x.target, x.weight ? &*x.weight : undefined}, x.name);
  const bool has_indices = !x.is_cross_entropy || x.self.sizes() != x.target.sizes();
  check_arguments(x, has_indices);
  ClassOperands operands;
  operands.dim = x.self.dim() == 1 ? 0 : 1;
  operands.has_indices = has_indices;
  Tensor scores = promote(x.self, mesh);
  const Tensor goal = promote(x.target, mesh);
  operands.spec = layout_of(scores, goal, operands.dim, has_indices);
  const SpecPtr target_layout =
      has_indices ? reduced_spec(operands.spec, {operands.dim}, /*keepdim=*/false, Replicate())
                  : operands.spec;
  if (at::IntArrayRef(target_layout->global_shape()) != x.target.sizes()) {
    throw ShardTensorError(
        c10::str(x.name, " got scores of ", x.self.sizes(), " and a target of ", x.target.sizes()));
  }
  // Sums of many are taken in float32.
  const at::ScalarType dtype =
      at::isReducedFloatingType(x.self.scalar_type()) ? at::kFloat : x.self.scalar_type();
  scores = redistribute(scores, operands.spec);
  if (x.is_cross_entropy && operands.has_cut_classes()) {
    scores = at::log_softmax(scores, operands.dim, dtype);
  }
  operands.scores = to_local(scores).to(dtype);
  operands.target = to_local(redistribute(goal, target_layout));
  if (!has_indices && at::isReducedFloatingType(operands.target.scalar_type())) {
    operands.target = operands.target.to(dtype);
  }
  if (x.weight && x.weight->defined()) {
    const SpecPtr layout = weight_layout(operands.spec, operands.dim);
    operands.weight = to_local(redistribute(promote(*x.weight, mesh), layout),
                               partial_where_replicated(layout, operands.spec));
    if (at::isReducedFloatingType(operands.weight->scalar_type())) {
      operands.weight = operands.weight->to(dtype);
    }
  }
  return operands;
}

}  // namespace meshrun
