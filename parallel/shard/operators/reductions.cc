// Reductions: a rank reduces its part. What is left to add between ranks is a Partial; what is not
// a sum is put together by one small all-gather an axis.
#include <cmath>
#include <limits>
#include <vector>

#include "ATen/Functions.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/operators/reduced.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {

// reduced.cc: a value that all ranks along the axes have, for each rank's own part of a
// computation. Its gradient is the sum of theirs.
at::Tensor on_each_rank(const at::Tensor& value, const ShardMesh::Ptr& mesh,
                        const std::vector<int64_t>& axes);

namespace {

using OptionalDims = at::OptionalIntArrayRef;
using OptionalType = std::optional<at::ScalarType>;
using OptionalScalar = std::optional<at::Scalar>;
using Dims = std::vector<int64_t>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor sum_dims(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalType dtype) {
  const at::Tensor input = with_sums_only(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  return from_local(at::sum(to_local(input), dims, keepdim, dtype),
                    reduced_spec(spec, dims, keepdim, Partial()));
}

at::Tensor sum_all(const at::Tensor& self, OptionalType dtype) {
  return sum_dims(self, {}, false, dtype);
}

// A rank's mean counts as much as it has elements.
at::Tensor mean_dims(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalType dtype) {
  const at::Tensor input = with_sums_only(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  const at::Tensor local = to_local(input);
  const int64_t own = reduced_count(spec->local_shape(), dims);
  const int64_t all = reduced_count(spec->global_shape(), dims);
  TORCH_CHECK(at::isFloatingType(dtype.value_or(self.scalar_type())) ||
                  at::isComplexType(dtype.value_or(self.scalar_type())),
              "mean(): the elements are of type ", self.scalar_type(),
              ": give a floating point or complex dtype");
  at::Tensor mean = own > 0 || all == 0 ? at::mean(local, dims, keepdim, dtype)
                                        : at::sum(local, dims, keepdim, dtype);
  if (own != all && own > 0) mean = mean * (static_cast<double>(own) / static_cast<double>(all));
  return from_local(mean, reduced_spec(spec, dims, keepdim, Partial()));
}

at::Tensor mean_all(const at::Tensor& self, OptionalType dtype) {
  return mean_dims(self, {}, false, dtype);
}

at::Tensor nansum(const at::Tensor& self, OptionalDims dim, bool keepdim, OptionalType dtype) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  return from_local(at::nansum(to_local(input), dims, keepdim, dtype),
                    reduced_spec(spec, dims, keepdim, Partial()));
}

at::Tensor prod_dim(const at::Tensor& self, int64_t dim, bool keepdim, OptionalType dtype) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(at::IntArrayRef(dim), input.dim());
  const at::Tensor own = at::prod(to_local(input), dim, keepdim, dtype);
  return from_local(
      combined(own, spec, dims, [](const at::Tensor& all) { return at::prod(all, 0); }),
      reduced_spec(spec, dims, keepdim, Replicate()));
}

at::Tensor prod_all(const at::Tensor& self, OptionalType dtype) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims({}, input.dim());
  return from_local(combined(at::prod(to_local(input), dtype), spec, dims,
                             [](const at::Tensor& all) { return at::prod(all, 0); }),
                    reduced_spec(spec, dims, false, Replicate()));
}

// The ranks that have a part of reduced dimensions, for their gradients: those are of the whole, to
// any order. Through each rank's own result they would be lost where that has none (a norm of
// zeros).
void save_ranks(AutogradContext* ctx, const SpecPtr& spec, const Dims& axes) {
  ctx->saved_data.emplace("spec", c10::IValue::make_capsule(spec));
  ctx->saved_data["axes"] = axes;
}

// A result that all ranks have, for this rank's part of the gradient.
at::Tensor on_saved_ranks(const at::Tensor& value, AutogradContext* ctx) {
  const auto spec =
      c10::static_intrusive_pointer_cast<ShardTensorSpec>(ctx->saved_data.at("spec").toCapsule());
  return on_each_rank(value, spec->mesh(), ctx->saved_data["axes"].toIntVector());
}

struct LogSumExp : torch::autograd::Function<LogSumExp> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& local, const SpecPtr& spec,
                            const Dims& dims, const Dims& axes) {
    const at::Tensor sum = combined(at::logsumexp(local, dims, true), spec, dims,
                                    [](const at::Tensor& all) { return at::logsumexp(all, 0); });
    ctx->save_for_backward({local, sum});
    save_ranks(ctx, spec, axes);
    return sum;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor weight = (saved[0] - on_saved_ranks(saved[1], ctx)).exp();
    return {on_saved_ranks(gradients[0], ctx) * weight.conj(), {}, {}, {}};
  }
};

at::Tensor logsumexp(const at::Tensor& self, at::IntArrayRef dim, bool keepdim) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  const at::Tensor local = to_local(input);
  const SpecPtr result = reduced_spec(spec, dims, keepdim, Replicate());
  const Dims axes = axes_that_cut(*spec, dims);
  if (axes.empty()) return from_local(at::logsumexp(local, dims, keepdim), result);
  return from_local(dropped(LogSumExp::apply(local, spec, dims, axes), dims, keepdim), result);
}

// The norm of the norms that ranks have. Its derivative is LibTorch's, of the whole.
struct VectorNorm : torch::autograd::Function<VectorNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& local, const SpecPtr& spec,
                            const Dims& dims, const Dims& axes, double order, OptionalType dtype) {
    const at::ScalarType result = at::toRealValueType(dtype.value_or(local.scalar_type()));
    const OptionalType type = at::isReducedFloatingType(result) ? OptionalType(at::kFloat) : dtype;
    // Without elements LibTorch has no norm of a negative order.
    at::Tensor norm = order < 0 && reduced_count(local.sizes(), dims) == 0
                          ? at::sum(at::abs(local), dims, true, type.value_or(result)) +
                                std::numeric_limits<double>::infinity()
                          : at::linalg_vector_norm(local, order, dims, true, type);
    norm = combined(norm, spec, dims, [&](const at::Tensor& all) {
      return order == 0 ? at::sum(all, 0) : at::linalg_vector_norm(all, order, Dims{0});
    });
    norm = norm.to(result);
    ctx->save_for_backward({local, norm});
    ctx->saved_data["order"] = order;
    save_ranks(ctx, spec, axes);
    return norm;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const double order = ctx->saved_data["order"].toDouble();
    const at::ScalarType type = saved[0].scalar_type();
    const at::Tensor x = at::isReducedFloatingType(type) ? saved[0].to(at::kFloat) : saved[0];
    const at::Tensor norm = on_saved_ranks(saved[1], ctx);
    const at::Tensor gradient = on_saved_ranks(gradients[0], ctx);
    const at::Tensor none = saved[1] == 0;
    at::Tensor result;
    if (order == 0) {
      result = at::zeros_like(x);
    } else if (order == 1) {
      result = x.sgn() * gradient;
    } else if (order == 2) {
      result = x * (gradient / norm).masked_fill(none, 0);
    } else if (order < 1) {
      const at::Tensor slope = x.sgn() * x.abs().pow(order - 1).masked_fill(x == 0, 0);
      result = slope * gradient * norm.pow(1 - order);
    } else {
      const at::Tensor slope =
          order < 2 ? x.sgn() * x.abs().pow(order - 1) : x * x.abs().pow(order - 2);
      result = slope * (gradient / norm.pow(order - 1)).masked_fill(none, 0);
    }
    return {result.to(type), {}, {}, {}, {}, {}};
  }
};

at::Tensor vector_norm(const at::Tensor& self, const at::Scalar& ord, OptionalDims dim,
                       bool keepdim, OptionalType dtype) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  const at::Tensor local = to_local(input);
  const double order = ord.toDouble();
  const SpecPtr result = reduced_spec(spec, dims, keepdim, Replicate());
  const Dims axes = axes_that_cut(*spec, dims);
  if (axes.empty()) {
    return from_local(at::linalg_vector_norm(local, ord, dims, keepdim, dtype), result);
  }
  if (std::isinf(order)) {
    // Extremes share a gradient among equal elements of all ranks.
    const at::Tensor sizes = at::abs(dtype ? input.to(*dtype) : input);
    return order > 0 ? at::amax(sizes, dims, keepdim) : at::amin(sizes, dims, keepdim);
  }
  const at::Tensor norm = VectorNorm::apply(local, spec, dims, axes, order, dtype);
  return from_local(dropped(norm, dims, keepdim), result);
}

at::Tensor norm_all(const at::Tensor& self, const at::Scalar& p) {
  return vector_norm(self, p, {}, false, {});
}
at::Tensor norm_all_as(const at::Tensor& self, const OptionalScalar& p, at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), {}, false, dtype);
}
at::Tensor norm_dims(const at::Tensor& self, const OptionalScalar& p, at::IntArrayRef dim,
                     bool keepdim) {
  return vector_norm(self, p.value_or(2), dim, keepdim, {});
}
at::Tensor norm_dims_as(const at::Tensor& self, const OptionalScalar& p, at::IntArrayRef dim,
                        bool keepdim, at::ScalarType dtype) {
  return vector_norm(self, p.value_or(2), dim, keepdim, dtype);
}

using OfAll = at::Tensor (*)(const at::Tensor&);
using OfDim = at::Tensor (*)(const at::Tensor&, int64_t, bool);
constexpr OfAll kAllOfAll = &at::all;
constexpr OfAll kAnyOfAll = &at::any;
constexpr OfDim kAllDim = &at::all;
constexpr OfDim kAnyDim = &at::any;

template <auto Whole, auto Along>
at::Tensor truth_all(const at::Tensor& self) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims({}, input.dim());
  return from_local(combined(Whole(local_of(input)), spec, dims,
                             [](const at::Tensor& all) { return Along(all, 0, false); }),
                    reduced_spec(spec, dims, false, Replicate()));
}

template <auto Along>
at::Tensor truth_dims(const at::Tensor& self, OptionalDims dim, bool keepdim) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  // Unlike elsewhere, an empty list means no dimension: each element is a truth of its own.
  const Dims dims = dim.has_value() && dim->empty() ? Dims{} : reduced_dims(dim, input.dim());
  at::Tensor own = local_of(input);
  for (const int64_t d : dims) own = Along(own, d, true);
  // LibTorch gives truths of bytes as bytes.
  if (dims.empty()) {
    own = own.scalar_type() == at::kByte ? at::ne(own, 0).to(at::kByte) : own.to(at::kBool);
  }
  own = combined(own, spec, dims, [](const at::Tensor& all) { return Along(all, 0, false); });
  return from_local(dropped(own, dims, keepdim), reduced_spec(spec, dims, keepdim, Replicate()));
}

template <auto Along>
at::Tensor truth_dim(const at::Tensor& self, int64_t dim, bool keepdim) {
  return truth_dims<Along>(self, at::IntArrayRef(dim), keepdim);
}

at::Tensor count_nonzero_dims(const at::Tensor& self, at::IntArrayRef dim) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  return from_local(at::count_nonzero(local_of(input), dims),
                    reduced_spec(spec, dims, false, Partial()));
}

at::Tensor count_nonzero(const at::Tensor& self, std::optional<int64_t> dim) {
  return dim ? count_nonzero_dims(self, at::IntArrayRef(*dim)) : count_nonzero_dims(self, {});
}

const Movement kSum = {"any Shard, Replicate, Partial(sum)",
                       "nothing: axes that cut a summed dimension become Partial(sum)", "nothing"};
const Movement kCount = {"any Shard, Replicate",
                         "a Partial is reduced; axes that cut a reduced dimension become "
                         "Partial(sum)",
                         "nothing"};
const Movement kCombined = {"any Shard, Replicate",
                            "a Partial is reduced; one result of each rank that has a part of a "
                            "reduced dimension",
                            "nothing"};

const bool kRegistered =
    OperatorFamily("reductions")
        .above_autograd("aten::sum", &sum_all, kSum)
        .above_autograd("aten::sum.dim_IntList", &sum_dims, kSum)
        .below_autograd("aten::sum.IntList_out", &Into<&sum_dims>::call, kSum)
        .below_autograd("aten::mean.out", &Into<&mean_dims>::call, kSum)
        .below_autograd("aten::prod.int_out", &Into<&prod_dim>::call, kCombined)
        .below_autograd("aten::logsumexp.out", &Into<&logsumexp>::call, kCombined)
        .below_autograd("aten::linalg_vector_norm.out", &Into<&vector_norm>::call, kCombined)
        .below_autograd("aten::norm.out", &Into<&norm_dims>::call, kCombined)
        .below_autograd("aten::all.out", &Into<&truth_dim<kAllDim>>::call, kCombined)
        .below_autograd("aten::any.out", &Into<&truth_dim<kAnyDim>>::call, kCombined)
        .above_autograd("aten::mean", &mean_all, kSum)
        .above_autograd("aten::mean.dim", &mean_dims, kSum)
        .above_autograd("aten::nansum", &nansum, kCount)
        .above_autograd("aten::count_nonzero", &count_nonzero, kCount)
        .above_autograd("aten::count_nonzero.dim_IntList", &count_nonzero_dims, kCount)
        .above_autograd("aten::prod", &prod_all, kCombined)
        .above_autograd("aten::prod.dim_int", &prod_dim, kCombined)
        .above_autograd("aten::logsumexp", &logsumexp, kCombined)
        .above_autograd("aten::linalg_vector_norm", &vector_norm, kCombined)
        .above_autograd("aten::norm.Scalar", &norm_all, kCombined)
        .above_autograd("aten::norm.ScalarOpt_dtype", &norm_all_as, kCombined)
        .above_autograd("aten::norm.ScalarOpt_dim", &norm_dims, kCombined)
        .above_autograd("aten::norm.ScalarOpt_dim_dtype", &norm_dims_as, kCombined)
        .above_autograd("aten::all", &truth_all<kAllOfAll, kAllDim>, kCombined)
        .above_autograd("aten::all.dim", &truth_dim<kAllDim>, kCombined)
        .above_autograd("aten::all.dims", &truth_dims<kAllDim>, kCombined)
        .above_autograd("aten::any", &truth_all<kAnyOfAll, kAnyDim>, kCombined)
        .above_autograd("aten::any.dim", &truth_dim<kAnyDim>, kCombined)
        .above_autograd("aten::any.dims", &truth_dims<kAnyDim>, kCombined)
        .registered();

}  // namespace
}  // namespace meshrun
