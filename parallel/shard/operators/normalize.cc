#include "parallel/shard/operators/normalize.h"

#include <optional>
#include <utility>

#include "ATen/ExpandUtils.h"
#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {

// reduced.cc: a value that all ranks along the axes have, for each rank's own part of a
// computation. Its gradient is the sum of theirs.
at::Tensor on_each_rank(const at::Tensor& value, const ShardMesh::Ptr& mesh,
                        const std::vector<int64_t>& axes);

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using NormalizationPtr = c10::intrusive_ptr<Normalization>;

at::Tensor spread(const at::Tensor& statistic, const Normalization& normalization,
                  at::IntArrayRef input) {
  if (!normalization.group_of_channel.defined()) return statistic;
  std::vector<int64_t> shape(input.size(), 1);
  shape[0] = input[0];
  shape[1] = input[1];
  return spread_groups(statistic, normalization.group_of_channel, shape);
}

at::Tensor total(const at::Tensor& elements, const Normalization& normalization) {
  const at::Tensor sum =
      normalization.dims.empty() ? elements : at::sum(elements, normalization.dims, true);
  return normalization.group_of_channel.defined()
             ? sum_groups(sum, normalization.group_of_channel, normalization.groups)
             : sum;
}

// The elements less their mean, by their deviation: as sums whose derivatives lead to all ranks'
// elements. `scale`: one by the deviation.
at::Tensor recorded_normal(const at::Tensor& values, const Normalization& how,
                           const at::Tensor& count, at::Tensor& scale) {
  const auto on_each = [&](const at::Tensor& statistic) {
    return spread(on_each_rank(statistic, how.mesh, how.axes), how, values.sizes());
  };
  // sum_over() may write into what has no history.
  const auto summed = [&](const at::Tensor& elements) {
    return sum_over(total(elements, how).clone(at::MemoryFormat::Contiguous), *how.mesh, how.axes);
  };
  const at::Tensor apart = how.centered ? values - on_each(summed(values) / count) : values;
  scale = on_each(at::rsqrt(summed(apart * apart) / count + how.eps));
  return apart * scale;
}

struct Normalize : torch::autograd::Function<Normalize> {
  // Optional ones, since a function takes undefined tensors in no other form.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight_or_none,
                            const std::optional<at::Tensor>& bias_or_none,
                            const NormalizationPtr& normalization, Moments* moments) {
    const at::Tensor weight = weight_or_none.value_or(at::Tensor());
    const at::Tensor bias = bias_or_none.value_or(at::Tensor());
    const Normalization& how = *normalization;
    const at::ScalarType type = moment_type(input.scalar_type());
    at::Tensor values;
    Moments own = moments_of(input.to(type), how.dims, how.centered, &values);
    const at::Tensor own_mean = own.mean;
    if (how.group_of_channel.defined()) own = grouped(own, how.group_of_channel, how.groups);
    const Moments all = merged(own, *how.mesh, how.axes);
    const at::Tensor scale = at::rsqrt(all.squares / all.count.clamp_min(1) + how.eps);
    if (how.centered) values.add_(own_mean - spread(all.mean, how, input.sizes()));
    values.mul_(spread(scale, how, input.sizes()));
    if (weight.defined()) values.mul_(weight.to(type));
    if (bias.defined()) values.add_(bias.to(type));
    if (moments != nullptr) *moments = all;
    ctx->save_for_backward({input, weight, bias, all.mean, scale, all.count});
    ctx->saved_data.emplace("normalization", c10::IValue::make_capsule(normalization));
    return values.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& bias = saved[2];
    const NormalizationPtr normalization = c10::static_intrusive_pointer_cast<Normalization>(
        ctx->saved_data.at("normalization").toCapsule());
    const Normalization& how = *normalization;
    const at::ScalarType type = moment_type(input.scalar_type());
    const at::Tensor gradient = gradients[0].to(type);
    const at::Tensor values = input.to(type);
    const at::Tensor count = saved[5].clamp_min(1);
    at::Tensor scale;
    at::Tensor normal;
    if (c10::GradMode::is_enabled()) {
      normal = recorded_normal(values, how, count, scale);
    } else {
      scale = spread(saved[4], how, input.sizes());
      normal = how.centered ? (values - spread(saved[3], how, input.sizes())).mul_(scale)
                            : values * scale;
    }

    variable_list results(5);
    if (ctx->needs_input_grad(0)) {
      at::Tensor inner = weight.defined() ? gradient * weight.to(type) : gradient;
      const at::Tensor sums = on_each_rank(
          sum_over(at::stack({total(inner, how), total(inner * normal, how)}).contiguous(),
                   *how.mesh, how.axes),
          how.mesh, how.axes);
      inner = at::addcmul(inner, normal, spread(sums[1] / count, how, input.sizes()), -1);
      if (how.centered) inner.sub_(spread(sums[0] / count, how, input.sizes()));
      results[0] = inner.mul_(scale).to(input.scalar_type());
    }
    if (weight.defined() && ctx->needs_input_grad(1)) {
      results[1] = at::sum_to(gradient * normal, weight.sizes()).to(weight.scalar_type());
    }
    // Its place among the tensors that were given.
    if (bias.defined() && ctx->needs_input_grad(weight.defined() ? 2 : 1)) {
      results[2] = at::sum_to(gradient, bias.sizes()).to(bias.scalar_type());
    }
    return results;
  }
};

}  // namespace

at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const NormalizationPtr& normalization, Moments* moments) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return Normalize::apply(input, given(weight), given(bias), normalization, moments);
}

}  // namespace meshrun
