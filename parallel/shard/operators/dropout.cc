// Layers that draw random numbers while they train: dropout in all its forms, and the randomized
// leaky ReLU. Numbers as in random.cc: the same global tensor for every mesh and sharding.
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/leaky_relu.h"
#include "ATen/ops/leaky_relu_backward.h"
#include "ATen/ops/mul.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/pointwise.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/random_box.h"
#include "parallel/shard/random/counter_random.h"

namespace meshrun {
namespace {

using at::Tensor;

// 1 with probability `kept`, else 0, in the layout of the input. `of_features`: one number for each
// feature (dimensions 0 and 1), shared by all later dimensions.
Tensor noise_for(const Tensor& input, double kept, bool of_features) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  SpecPtr spec = gradient_spec(spec_of(input));
  if (of_features) {
    TORCH_CHECK(input.dim() >= 2, "Feature dropout requires at least 2 dimensions in the input");
    Placements placements = spec->placements();
    std::vector<DimCut> cuts = spec->layout().cuts();
    for (Placement& placement : placements) {
      if (placement.is_shard() && placement.dim() >= 2) placement = Replicate();
    }
    for (size_t dim = 2; dim < cuts.size(); ++dim) cuts[dim] = {{}, {1}};
    spec = make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                          std::move(placements), std::move(cuts)));
  }
  const Tensor local = of_features ? at::empty(spec->local_shape(), local_of(input).options())
                                   : at::empty_like(local_of(input));
  draw(local, spec, {}, [kept](const auto&... x) { fill_bernoulli(x..., kept); });
  return wrap(local, spec);
}

enum class DropoutForm { kPlain, kAlpha };

// As LibTorch's _dropout: the scale of the kept elements and, in alpha dropout alone, their shift.
template <bool of_features, DropoutForm form>
std::optional<std::pair<Tensor, Tensor>> noise_and_shift(const Tensor& input, double p,
                                                         bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.numel() == 0) return std::nullopt;
  const c10::NoGradGuard no_grad;
  const Tensor noise = noise_for(input, 1 - p, of_features);
  if (form == DropoutForm::kPlain) {
    if (p < 1) local_of(noise).div_(1 - p);
    return std::pair(noise, Tensor());
  }
  if (p == 1) return std::pair(noise, Tensor());
  constexpr double kAlpha = 1.7580993408473766;
  const double a = 1 / std::sqrt((kAlpha * kAlpha * p + 1) * (1 - p));
  const Tensor shift = noise.add(-1).mul_(kAlpha * a).add_(kAlpha * a * p);
  return std::pair(noise.mul(a), shift);
}

template <bool of_features, DropoutForm form>
Tensor dropout(const Tensor& input, double p, bool train) {
  const auto noise = noise_and_shift<of_features, form>(input, p, train);
  if (!noise) return input;
  const Tensor kept = input.mul(noise->first);
  return noise->second.defined() ? kept.add(noise->second) : kept;
}

template <bool of_features, DropoutForm form>
Tensor& dropout_(Tensor& input, double p, bool train) {
  const auto noise = noise_and_shift<of_features, form>(input, p, train);
  if (!noise) return input;
  input.mul_(noise->first);
  if (noise->second.defined()) input.add_(noise->second);
  return input;
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = gradient_spec(spec_of(input));
  const Tensor local = redistribute_local(local_of(input), spec_of(input), spec);
  const Tensor mask = at::empty_like(local, local.options().dtype(at::kBool));
  if (!train.value_or(true) || p == 0) {
    return {wrap(local.clone(), spec), wrap(mask.fill_(true), spec)};
  }
  draw(mask, spec, {}, [p](const auto&... x) { fill_bernoulli(x..., 1 - p); });
  return {wrap(local * mask * (p < 1 ? 1 / (1 - p) : 0), spec), wrap(mask, spec)};
}

// A leaky ReLU. Where it trains, the slope of each element that is not positive is drawn, and
// `noise` keeps the slopes for the gradient; else all have the mean of the bounds.
Tensor rrelu(const Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
             bool training, std::optional<at::Generator> generator) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const double low = lower.toDouble();
  const double high = upper.toDouble();
  const SpecPtr spec = gradient_spec(spec_of(self));
  const Tensor local = redistribute_local(local_of(self), spec_of(self), spec);
  if (!training) return wrap(at::leaky_relu(local, (low + high) / 2), spec);
  const Tensor slopes = at::empty_like(local);
  draw(slopes, spec, generator, [low, high](const auto&... x) { fill_uniform(x..., low, high); });
  slopes.masked_fill_(local > 0, 1);
  assign(noise, wrap(slopes, spec));
  return wrap(local * slopes, spec);
}
Tensor& rrelu_(Tensor& self, Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
               bool training, std::optional<at::Generator> generator) {
  const Tensor result = rrelu(self, noise, lower, upper, training, std::move(generator));
  const at::AutoDispatchBelowADInplaceOrView guard;
  return assign(self, result);
}
// LibTorch's formula, on sharded tensors.
Tensor rrelu_backward(const Tensor& gradient, const Tensor& self, const Tensor& noise,
                      const at::Scalar& lower, const at::Scalar& upper, bool training,
                      bool self_is_result) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const double low = lower.toDouble();
  const double high = upper.toDouble();
  if (training && high - low > 1e-6) return at::mul(gradient, noise);
  return at::leaky_relu_backward(gradient, self, (low + high) / 2, self_is_result);
}

constexpr DropoutForm kPlain = DropoutForm::kPlain;
constexpr DropoutForm kAlpha = DropoutForm::kAlpha;

const Movement kSlopes = {"any Shard, Replicate", "a Partial is reduced", "nothing"};
const Movement kDropout = {"any, Partial(sum) too", "nothing", "nothing"};

const bool kRegistered =
    OperatorFamily("random numbers")
        .above_autograd("aten::dropout", &dropout<false, kPlain>, kDropout)
        .above_autograd("aten::dropout_", &dropout_<false, kPlain>, kDropout)
        .above_autograd("aten::alpha_dropout", &dropout<false, kAlpha>, kDropout)
        .above_autograd("aten::alpha_dropout_", &dropout_<false, kAlpha>, kDropout)
        .above_autograd("aten::feature_dropout", &dropout<true, kPlain>, kDropout)
        .above_autograd("aten::feature_dropout_", &dropout_<true, kPlain>, kDropout)
        .above_autograd("aten::feature_alpha_dropout", &dropout<true, kAlpha>, kDropout)
        .above_autograd("aten::feature_alpha_dropout_", &dropout_<true, kAlpha>, kDropout)
        .below_autograd("aten::native_dropout", &native_dropout, kDropout)
        .below_autograd("aten::rrelu_with_noise", &meshrun::rrelu, kSlopes)
        .below_autograd("aten::rrelu_with_noise_", &meshrun::rrelu_, kSlopes)
        .below_autograd("aten::rrelu_with_noise_backward", &rrelu_backward, kSlopes)
        .boxed({"aten::native_dropout_backward"}, pointwise(Linearity::kFirst), kDropout)
        .registered();

}  // namespace
}  // namespace meshrun
