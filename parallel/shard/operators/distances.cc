// Distances between the rows of two tensors. Rows and batches that are cut stay so: each rank has
// the distances of its own rows from all of the other tensor. Where coordinates are cut and there
// are fewer distances than coordinates, ranks combine what their pieces contribute.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/_cdist_backward.h"
#include "ATen/ops/_cdist_forward.h"
#include "ATen/ops/_euclidean_dist.h"
#include "ATen/ops/cdist.h"
#include "c10/util/accumulate.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/contraction.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/operators/product.h"
#include "parallel/shard/redistribute/redistribution_plans.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {

// reduced.cc: a value that all ranks along the axes have, for each rank's own part of a
// computation. Its gradient is the sum of theirs.
at::Tensor on_each_rank(const at::Tensor& value, const ShardMesh::Ptr& mesh,
                        const std::vector<int64_t>& axes);

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// LibTorch's modes of computation.
constexpr int64_t kByProducts = 1;  // of matrices, for p of 2
constexpr int64_t kByDifferences = 2;

int64_t distance_mode(const Tensor& x1, const Tensor& x2, double p, int64_t mode) {
  const bool many = x1.size(-2) > 25 || x2.size(-2) > 25;
  const bool by_products = p == 2 && (mode == 1 || (mode == 0 && many));
  return by_products && x1.numel() > 0 && x2.numel() > 0 ? kByProducts : kByDifferences;
}

// LibTorch's errors on all ranks, also on those whose part is empty.
void check_distance_arguments(const Tensor& x1, const Tensor& x2, double p, int64_t mode) {
  TORCH_CHECK(x1.dim() >= 2, "cdist only supports at least 2D tensors, X1 got: ", x1.dim(), "D");
  TORCH_CHECK(x2.dim() >= 2, "cdist only supports at least 2D tensors, X2 got: ", x2.dim(), "D");
  TORCH_CHECK(x1.size(-1) == x2.size(-1),
              "X1 and X2 must have the same number of columns. X1: ", x1.size(-1),
              " X2: ", x2.size(-1));
  TORCH_CHECK(at::isFloatingType(x1.scalar_type()),
              "cdist only supports floating-point dtypes, X1 got: ", x1.scalar_type());
  TORCH_CHECK(at::isFloatingType(x2.scalar_type()),
              "cdist only supports floating-point dtypes, X2 got: ", x2.scalar_type());
  TORCH_CHECK(p >= 0, "cdist only supports non-negative p values");
  TORCH_CHECK(mode >= 0 && mode <= 2, "possible modes: 0, 1, 2, but was: ", mode);
  const at::ScalarType type = x1.scalar_type();
  if (type == x2.scalar_type() && (type == at::kFloat || type == at::kDouble)) return;
  at::cdist(small_stand_in(x1), small_stand_in(x2), p, distance_mode(x1, x2, p, mode));
}

at::IntArrayRef batch_of(at::IntArrayRef shape) { return shape.slice(0, shape.size() - 2); }

// The coordinates whole, and the rows cut by their axes, where no other axis cuts these.
ShardLayout with_rows_for_coordinates(const ShardLayout& layout) {
  const int64_t last = layout.ndim() - 1;
  const std::vector<int64_t> axes = layout.cuts()[static_cast<size_t>(last)].axes;
  if (axes.empty()) return layout;
  const std::vector<int64_t>& shape = layout.global_shape();
  LayoutDraft draft(layout);
  draft.make_whole(last, shape[static_cast<size_t>(last)]);
  if (!draft.is_cut(last - 1)) {
    draft.cut(last - 1, even_cut(layout.mesh_shape(), axes, shape[static_cast<size_t>(last) - 1]));
  }
  return draft.layout();
}

// Layouts of both operands, of their gradients, and of the distances.
std::vector<ShardLayout> distance_layouts(const SpecPtr& x1, const SpecPtr& x2) {
  constexpr int kRowOf1 = 0;
  constexpr int kRowOf2 = 1;
  constexpr int kCoordinate = 2;
  constexpr int kBatchFromBack = 3;
  const std::vector<int64_t>& mesh = x1->mesh()->shape();
  const at::IntArrayRef shapes[] = {x1->global_shape(), x2->global_shape()};
  const std::vector<int64_t> batch = at::infer_size(batch_of(shapes[0]), batch_of(shapes[1]));
  ShardLayout layouts[] = {without_partial(x1)->layout(), without_partial(x2)->layout()};
  const int64_t distances =
      c10::multiply_integers(batch) * shapes[0].end()[-2] * shapes[1].end()[-2];
  const int64_t coordinates = c10::multiply_integers(shapes[0]) + c10::multiply_integers(shapes[1]);
  if (distances > coordinates) {
    for (ShardLayout& layout : layouts) layout = with_rows_for_coordinates(layout);
  }

  std::vector<Factor> factors;
  for (size_t i = 0; i < 2; ++i) {
    std::vector<int> labels;
    const at::IntArrayRef own = batch_of(shapes[i]);
    for (size_t d = 0; d < own.size(); ++d) {
      const size_t from_back = own.size() - d;
      labels.push_back(own[d] == batch[batch.size() - from_back]
                           ? kBatchFromBack + static_cast<int>(from_back)
                           : kBroadcastLabel);
    }
    labels.push_back(i == 0 ? kRowOf1 : kRowOf2);
    labels.push_back(kCoordinate);
    factors.push_back({&layouts[i], shapes[i].vec(), std::move(labels)});
  }
  std::vector<int> result;
  for (size_t from_back = batch.size(); from_back > 0; --from_back) {
    result.push_back(kBatchFromBack + static_cast<int>(from_back));
  }
  result.insert(result.end(), {kRowOf1, kRowOf2});
  ContractionLayout all = contraction(mesh, factors, result);
  // Ranks with pieces of the coordinates have the whole distances.
  Placements placements = all.result.placements();
  for (Placement& placement : placements) {
    if (placement.is_partial()) placement = Replicate();
  }
  return {all.factors[0], all.factors[1], all.gradients[0], all.gradients[1],
          all.result.with_placements(placements)};
}

// The gradient of rows `x` from that of their distances from rows `y`.
Tensor gradient_of_rows(const Tensor& gradient, const Tensor& x, const Tensor& y, double p,
                        int64_t mode, const Tensor& distances) {
  if (mode == kByDifferences) {
    return at::_cdist_backward(gradient.contiguous(), x, y, p, distances.contiguous());
  }
  // LibTorch's formula for distances by products, whose second derivative is that of its parts.
  const Tensor share = (gradient / distances).masked_fill(distances == 0, 0);
  return x * share.sum(-1, true) - share.matmul(y);
}

// Distances of rows from pieces of their coordinates, which ranks along some axes have. A rank's
// gradient takes no more than the whole distances: LibTorch's formulas go coordinate by coordinate.
struct CutDistances : torch::autograd::Function<CutDistances> {
  // `spec`: a layout whose dimension `dim` is cut as the coordinates are.
  static Tensor forward(AutogradContext* ctx, const Tensor& x1, const Tensor& x2, double p,
                        int64_t mode, const SpecPtr& spec, int64_t dim) {
    Tensor distances = at::_cdist_forward(x1, x2, p, mode);
    if (std::isinf(p)) {
      all_reduce_over(spec, {dim}, distances, PartialOp::kMax);
    } else {
      const bool is_power = p != 0 && p != 1;
      if (is_power) distances = distances.pow(p);
      all_reduce_over(spec, {dim}, distances, PartialOp::kSum);
      if (is_power) distances = distances.pow(1 / p);
    }
    ctx->save_for_backward({x1, x2, distances});
    ctx->saved_data["p"] = p;
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["axes"] = axes_that_cut(*spec, {dim});
    ctx->saved_data.emplace("spec", c10::IValue::make_capsule(spec));
    return distances;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto spec =
        c10::static_intrusive_pointer_cast<ShardTensorSpec>(ctx->saved_data.at("spec").toCapsule());
    const std::vector<int64_t> axes = ctx->saved_data["axes"].toIntVector();
    const double p = ctx->saved_data["p"].toDouble();
    const int64_t mode = ctx->saved_data["mode"].toInt();
    const Tensor gradient = on_each_rank(gradients[0], spec->mesh(), axes);
    const Tensor distances = on_each_rank(saved[2], spec->mesh(), axes);
    variable_list result(6);
    if (ctx->needs_input_grad(0)) {
      result[0] = gradient_of_rows(gradient, saved[0], saved[1], p, mode, distances);
    }
    if (ctx->needs_input_grad(1)) {
      result[1] = gradient_of_rows(gradient.mT(), saved[1], saved[0], p, mode, distances.mT());
    }
    return result;
  }
};

// [batch, rows, coordinates], one batch for all of these.
Tensor in_one_batch(const Tensor& local, at::IntArrayRef batch) {
  std::vector<int64_t> shape = batch.vec();
  shape.insert(shape.end(), {local.size(-2), local.size(-1)});
  return local.expand(shape)
      .reshape({c10::multiply_integers(batch), local.size(-2), local.size(-1)})
      .contiguous();
}

// The rule of layouts.
const char kDistanceRule = 0;

Tensor distances(const Tensor& x1, const Tensor& x2, double p,
                 std::optional<int64_t> compute_mode) {
  check_distance_arguments(x1, x2, p, compute_mode.value_or(0));
  const int64_t mode = distance_mode(x1, x2, p, compute_mode.value_or(0));
  const ShardMesh::Ptr mesh = mesh_of({&x1, &x2}, "cdist");
  const Tensor first = promote(x1, mesh);
  const Tensor second = promote(x2, mesh);
  // Batches that do not fit raise LibTorch's error here.
  const DerivedSpecs specs =
      derived_specs({rule_number(&kDistanceRule)}, {&spec_of(first), &spec_of(second)},
                    [&] { return distance_layouts(spec_of(first), spec_of(second)); });
  const SpecPtr& result = specs[4];
  const at::IntArrayRef batch = batch_of(result->local_shape());
  const auto local = [&](const Tensor& tensor, size_t i) {
    return in_one_batch(to_local(redistribute(tensor, specs[i]), specs[i + 2]), batch);
  };
  Tensor rows1 = local(first, 0);
  Tensor rows2 = local(second, 1);
  Tensor own;
  if (axes_that_cut(*specs[0], {first.dim() - 1}).empty()) {
    own = mode == kByProducts ? at::_euclidean_dist(rows1, rows2)
                              : at::_cdist_forward(rows1, rows2, p, kByDifferences);
  } else {
    const at::ScalarType dtype = x1.scalar_type();
    if (at::isReducedFloatingType(dtype)) {
      rows1 = rows1.to(at::kFloat);
      rows2 = rows2.to(at::kFloat);
    }
    own = CutDistances::apply(rows1, rows2, p, mode, specs[0], first.dim() - 1).to(dtype);
  }
  return from_local(own.reshape(result->local_shape()), result);
}

const bool kRegistered =
    OperatorFamily("distances")
        .above_autograd(
            "aten::cdist", &distances,
            {"Shard of the batch, equal on both; Shard of one operand's rows beside whole rows of "
             "the other; Shard of the coordinates, equal on both, where there are fewer distances "
             "than coordinates; Replicate beside it is cut in place",
             "two cuts on one axis: the smaller operand; a Partial is reduced. Cut coordinates: "
             "the distances, all-reduced; where these are more than the coordinates, the rows are "
             "cut instead",
             "the gradient of a Replicate operand becomes Partial(sum)"})
        .registered();

}  // namespace
}  // namespace meshrun
