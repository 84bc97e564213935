// Variances and standard deviations: counts, means and squared deviations of ranks are merged.
#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
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
using OptionalScalar = std::optional<at::Scalar>;
using Dims = std::vector<int64_t>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Variance or deviation, and mean, of elements on all ranks along the axes; dimensions stay.
struct Spread : torch::autograd::Function<Spread> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& input, const Dims& dims,
                               const SpecPtr& spec, const Dims& axes, double correction,
                               bool is_deviation) {
    const at::ScalarType type = moment_type(input.scalar_type());
    const Moments all = merged(moments_of(input.to(type), dims), *spec->mesh(), axes);
    // Fewer elements than the correction: a division by zero, as LibTorch has it.
    const at::Tensor freedom = (all.count - correction).clamp_min(0);
    at::Tensor spread = all.squares / freedom;
    if (is_deviation) spread = spread.sqrt();
    ctx->save_for_backward({input, all.mean, spread, freedom, all.count});
    ctx->saved_data["dims"] = dims;
    ctx->saved_data["is_deviation"] = is_deviation;
    ctx->saved_data["axes"] = axes;
    ctx->saved_data.emplace("spec", c10::IValue::make_capsule(spec));
    return {spread.to(input.scalar_type()), all.mean.to(input.scalar_type())};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto spec =
        c10::static_intrusive_pointer_cast<ShardTensorSpec>(ctx->saved_data.at("spec").toCapsule());
    const ShardMesh::Ptr& mesh = spec->mesh();
    const Dims axes = ctx->saved_data["axes"].toIntVector();
    const bool is_deviation = ctx->saved_data["is_deviation"].toBool();
    const at::Tensor& freedom = saved[3];
    const at::Tensor& count = saved[4];
    const at::ScalarType type = count.scalar_type();
    const at::Tensor values = saved[0].to(type);
    at::Tensor apart;
    at::Tensor deviation;
    if (c10::GradMode::is_enabled()) {
      // A derivative of this derivative needs them as functions of the elements.
      const Dims dims = ctx->saved_data["dims"].toIntVector();
      const at::Tensor mean = sum_over(at::sum(values, dims, true), *mesh, axes) / count;
      apart = values - on_each_rank(mean, mesh, axes);
      if (is_deviation) {
        deviation = (sum_over(at::sum(apart * apart, dims, true), *mesh, axes) / freedom).sqrt();
      }
    } else {
      apart = values - saved[1];
      deviation = saved[2];
    }
    at::Tensor of_variance = gradients[0].to(type);
    if (is_deviation) {
      of_variance = (of_variance / (deviation * 2)).masked_fill(saved[2] == 0, 0);
    }
    const at::Tensor gradient = on_each_rank(of_variance * 2 / freedom, mesh, axes) * apart +
                                on_each_rank(gradients[1].to(type) / count, mesh, axes);
    return {gradient.to(saved[0].scalar_type()), {}, {}, {}, {}, {}};
  }
};

struct Result {
  at::Tensor spread;
  at::Tensor mean;
};

Result spread_of(const at::Tensor& self, OptionalDims dim, const OptionalScalar& correction,
                 bool keepdim, bool is_deviation) {
  const at::Tensor input = without_summands(self);
  const SpecPtr& spec = spec_of(input);
  const Dims dims = reduced_dims(dim, input.dim());
  const at::Tensor local = to_local(input);
  const Dims axes = axes_that_cut(*spec, dims);
  const SpecPtr result = reduced_spec(spec, dims, keepdim, Replicate());
  if (axes.empty()) {
    const auto [spread, mean] = is_deviation ? at::std_mean(local, dims, correction, keepdim)
                                             : at::var_mean(local, dims, correction, keepdim);
    return {from_local(spread, result), from_local(mean, result)};
  }
  TORCH_CHECK_TYPE(at::isFloatingType(local.scalar_type()),
                   "variances of sharded tensors are of floating-point elements, not ",
                   local.scalar_type());
  const variable_list both =
      Spread::apply(local, dims, spec, axes, correction.value_or(1).toDouble(), is_deviation);
  return {from_local(dropped(both[0], dims, keepdim), result),
          from_local(dropped(both[1], dims, keepdim), result)};
}

template <bool IsDeviation>
at::Tensor spread(const at::Tensor& self, OptionalDims dim, const OptionalScalar& correction,
                  bool keepdim) {
  return spread_of(self, dim, correction, keepdim, IsDeviation).spread;
}

template <bool IsDeviation>
std::tuple<at::Tensor, at::Tensor> spread_mean(const at::Tensor& self, OptionalDims dim,
                                               const OptionalScalar& correction, bool keepdim) {
  Result result = spread_of(self, dim, correction, keepdim, IsDeviation);
  return {std::move(result.spread), std::move(result.mean)};
}

const Movement kMerged = {"any Shard, Replicate",
                          "a Partial is reduced; count, mean and squared deviations of each rank "
                          "that has a part of a reduced dimension",
                          "nothing"};

const bool kRegistered =
    OperatorFamily("reductions")
        .above_autograd("aten::var.correction", &spread<false>, kMerged)
        .above_autograd("aten::std.correction", &spread<true>, kMerged)
        .below_autograd("aten::var.correction_out", &Into<&spread<false>>::call, kMerged)
        .below_autograd("aten::std.correction_out", &Into<&spread<true>>::call, kMerged)
        .above_autograd("aten::var_mean.correction", &spread_mean<false>, kMerged)
        .above_autograd("aten::std_mean.correction", &spread_mean<true>, kMerged)
        .registered();

}  // namespace
}  // namespace meshrun
