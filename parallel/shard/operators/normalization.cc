// Normalisation layers. Where no averaged dimension is cut the local operator runs; else means and
// variances are merged between ranks (operators/normalize.h).
#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/normalize.h"

namespace meshrun {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using Dims = std::vector<int64_t>;

bool is_defined(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

Dims range(int64_t begin, int64_t end) {
  Dims dims(static_cast<size_t>(std::max<int64_t>(end - begin, 0)));
  std::iota(dims.begin(), dims.end(), begin);
  return dims;
}

// What a layer computes with.
struct Input {
  at::Tensor local;
  SpecPtr spec;
};

Input input_of(const at::Tensor& input, std::initializer_list<const OptionalTensor*> parameters,
               const char* name) {
  SameMesh mesh(name);
  mesh.add(input);
  for (const OptionalTensor* parameter : parameters) {
    if (is_defined(*parameter)) mesh.add(**parameter);
  }
  const at::Tensor promoted = promote(input, mesh.get());
  const at::Tensor whole = redistribute(promoted, without_partial(spec_of(promoted)));
  return {to_local(whole), spec_of(whole)};
}

// The layout of a tensor whose dimensions are those `dims` of one with layout `spec`.
SpecPtr aligned_spec(const SpecPtr& spec, const Dims& dims, bool partial_elsewhere = false) {
  Placements placements(spec->placements().size());
  std::vector<DimCut> cuts;
  for (size_t d = 0; d < dims.size(); ++d) {
    cuts.push_back(spec->layout().cuts()[static_cast<size_t>(dims[d])]);
    for (const int64_t axis : cuts.back().axes) {
      placements[static_cast<size_t>(axis)] = Shard(static_cast<int64_t>(d));
    }
  }
  for (size_t axis = 0; axis < placements.size() && partial_elsewhere; ++axis) {
    if (placements[axis].is_replicate() && spec->placements()[axis].is_shard()) {
      placements[axis] = Partial();
    }
  }
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                        std::move(placements), std::move(cuts)));
}

// This rank's part of a parameter of the dimensions `dims` of the input; its gradient is a summand.
at::Tensor part(const OptionalTensor& parameter, const Input& input, const Dims& dims,
                const char* name) {
  if (!is_defined(parameter)) return {};
  const at::Tensor whole = promote(*parameter, input.spec->mesh());
  const SpecPtr spec = aligned_spec(input.spec, dims);
  if (whole.sizes() != at::IntArrayRef(spec->global_shape())) {
    throw ShardTensorError(fmt::format("{}: a parameter of [{}] for dimensions of [{}]", name,
                                       fmt::join(whole.sizes(), ", "),
                                       fmt::join(spec->global_shape(), ", ")));
  }
  return to_local(redistribute(whole, spec), aligned_spec(input.spec, dims, true));
}

// For parameters of channels.
at::Tensor over_channels(const at::Tensor& parameter, int64_t ndim) {
  if (!parameter.defined()) return parameter;
  Dims shape(static_cast<size_t>(ndim), 1);
  shape[1] = parameter.size(0);
  return parameter.view(shape);
}

c10::intrusive_ptr<Normalization> averaging(const Input& input, Dims dims, double eps) {
  auto how = c10::make_intrusive<Normalization>();
  how->mesh = input.spec->mesh();
  how->axes = axes_that_cut(*input.spec, dims);
  how->dims = std::move(dims);
  how->eps = eps;
  return how;
}

Dims normalized_dims(const at::Tensor& input, at::IntArrayRef shape, const char* name) {
  const auto count = static_cast<int64_t>(shape.size());
  if (count == 0 || input.dim() < count || input.sizes().slice(input.dim() - count) != shape) {
    throw ShardTensorError(fmt::format("{}: normalized_shape [{}] for an input of [{}]", name,
                                       fmt::join(shape, ", "), fmt::join(input.sizes(), ", ")));
  }
  return range(input.dim() - count, input.dim());
}

// Whether a layer is LibTorch's own on each rank's part. Where nothing is averaged between ranks
// but a rank has no element, it is not: LibTorch's graph of no elements is another one than that of
// some, and ranks exchange gradients in the order of their graphs.
bool is_local(const Input& x, const Normalization& how) {
  if (!how.axes.empty()) return false;
  const auto& cuts = x.spec->layout().cuts();
  return std::none_of(cuts.begin(), cuts.end(), [](const DimCut& cut) {
    return std::find(cut.sizes.begin(), cut.sizes.end(), 0) != cut.sizes.end();
  });
}

at::Tensor layer_norm(const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                      const OptionalTensor& bias, double eps, bool cudnn_enable) {
  const Dims dims = normalized_dims(input, shape, "layer_norm");
  const Input x = input_of(input, {&weight, &bias}, "layer_norm");
  const at::Tensor w = part(weight, x, dims, "layer_norm");
  const at::Tensor b = part(bias, x, dims, "layer_norm");
  const auto how = averaging(x, dims, eps);
  if (is_local(x, *how)) {
    return from_local(at::layer_norm(x.local, shape, w, b, eps, cudnn_enable), x.spec);
  }
  return from_local(normalize(x.local, w, b, how), x.spec);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(const at::Tensor& input,
                                                                 at::IntArrayRef shape,
                                                                 const OptionalTensor& weight,
                                                                 const OptionalTensor& bias,
                                                                 double eps) {
  const Dims dims = normalized_dims(input, shape, "native_layer_norm");
  const Input x = input_of(input, {&weight, &bias}, "native_layer_norm");
  Moments moments;
  const at::Tensor y = from_local(
      normalize(x.local, part(weight, x, dims, "native_layer_norm"),
                part(bias, x, dims, "native_layer_norm"), averaging(x, dims, eps), &moments),
      x.spec);
  // The averaged dimensions stay, of extent 1.
  std::vector<DimCut> cuts = x.spec->layout().cuts();
  Placements placements = x.spec->placements();
  for (const int64_t dim : dims) {
    for (const int64_t axis : cuts[static_cast<size_t>(dim)].axes) {
      placements[static_cast<size_t>(axis)] = Replicate();
    }
    cuts[static_cast<size_t>(dim)] = {{}, {1}};
  }
  const SpecPtr spec = make_spec(
      x.spec->mesh(),
      ShardLayout::with_cuts(x.spec->mesh()->shape(), std::move(placements), std::move(cuts)));
  const at::Tensor scale = at::rsqrt(moments.squares.detach() / moments.count.clamp_min(1) + eps);
  const at::ScalarType type =
      x.local.is_cuda() ? moment_type(x.local.scalar_type()) : x.local.scalar_type();
  return {y, wrap(moments.mean.detach().to(type), spec), wrap(scale.to(type), spec)};
}

at::Tensor rms_norm(const at::Tensor& input, at::IntArrayRef shape, const OptionalTensor& weight,
                    std::optional<double> eps) {
  const Dims dims = normalized_dims(input, shape, "rms_norm");
  const Input x = input_of(input, {&weight}, "rms_norm");
  const at::Tensor w = part(weight, x, dims, "rms_norm");
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(x.local.scalar_type()),
                              "rms_norm is not implemented for sharded tensors of ",
                              x.local.scalar_type());
  // LibTorch takes the default of the dtype that it computes in: float32 for 16-bit floats.
  const double default_eps = x.local.scalar_type() == at::kDouble
                                 ? std::numeric_limits<double>::epsilon()
                                 : std::numeric_limits<float>::epsilon();
  const double epsilon = eps.value_or(default_eps);
  const auto how = averaging(x, dims, epsilon);
  if (is_local(x, *how)) {
    return from_local(
        at::rms_norm(x.local, shape, w.defined() ? OptionalTensor(w) : std::nullopt, eps), x.spec);
  }
  how->centered = false;
  return from_local(normalize(x.local, w, {}, how), x.spec);
}

// Whether no piece of the channels has a part of a group only.
bool cut_between_groups(const ShardTensorSpec& spec, int64_t channels_per_group) {
  for (const int64_t size : spec.layout().cuts()[1].sizes) {
    if (size % channels_per_group != 0) return false;
  }
  return true;
}

at::Tensor group_norm(const at::Tensor& input, int64_t num_groups, const OptionalTensor& weight,
                      const OptionalTensor& bias, double eps, bool cudnn_enabled) {
  TORCH_CHECK_VALUE(input.dim() >= 2 && num_groups > 0 && input.size(1) % num_groups == 0,
                    "group_norm takes [batch, channels, ...] and a divisor of the channels, not ",
                    input.sizes(), " and ", num_groups);
  const Input x = input_of(input, {&weight, &bias}, "group_norm");
  const at::Tensor w = part(weight, x, {1}, "group_norm");
  const at::Tensor b = part(bias, x, {1}, "group_norm");
  const int64_t per_group = std::max<int64_t>(input.size(1) / num_groups, 1);
  const bool between = cut_between_groups(*x.spec, per_group);
  const int64_t groups = between ? x.local.size(1) / per_group : num_groups;
  const auto how = averaging(x, range(2, input.dim()), eps);
  if (!between) how->axes = axes_that_cut(*x.spec, range(1, input.dim()));
  if (is_local(x, *how)) {
    return from_local(at::group_norm(x.local, groups, w, b, eps, cudnn_enabled), x.spec);
  }
  how->groups = groups;
  how->group_of_channel = (at::arange(x.local.size(1), x.local.options().dtype(at::kLong)) +
                           (between ? 0 : x.spec->box().offsets[1]))
                              .floor_divide(per_group);
  return from_local(
      normalize(x.local, over_channels(w, input.dim()), over_channels(b, input.dim()), how),
      x.spec);
}

// running = (1 - momentum) * running + momentum * statistic, on every rank that holds a part of it.
// `statistic`: local, of layout `spec`.
void update_running(const OptionalTensor& running, const at::Tensor& statistic, const SpecPtr& spec,
                    double momentum) {
  if (!is_defined(running)) return;
  const at::NoGradGuard guard;
  const ShardTensorImpl* impl = shard_impl(*running);
  const SpecPtr to =
      impl == nullptr ? replicated_spec(spec->mesh(), running->sizes()) : impl->spec();
  const at::Tensor local = impl == nullptr ? *running : impl->local();
  const at::Tensor moved = redistribute_local(statistic.detach(), spec, to);
  local.mul_(1 - momentum).add_(moved.to(local.scalar_type()), momentum);
}

at::Tensor with_given_moments(const Input& x, const OptionalTensor& weight,
                              const OptionalTensor& bias, const OptionalTensor& mean,
                              const OptionalTensor& variance, double eps, bool cudnn_enabled) {
  const char* name = "batch_norm";
  const at::Tensor w = part(weight, x, {1}, name);
  const at::Tensor b = part(bias, x, {1}, name);
  const at::Tensor m = part(mean, x, {1}, name);
  const at::Tensor v = part(variance, x, {1}, name);
  if (is_local(x, Normalization())) {
    return from_local(at::batch_norm(x.local, w, b, m, v, false, 0, eps, cudnn_enabled), x.spec);
  }
  const int64_t ndim = x.local.dim();
  at::Tensor y = (x.local - over_channels(m, ndim)) * at::rsqrt(over_channels(v, ndim) + eps);
  if (w.defined()) y = y * over_channels(w, ndim);
  if (b.defined()) y = y + over_channels(b, ndim);
  return from_local(y.to(x.local.scalar_type()), x.spec);
}

at::Tensor batch_norm(const at::Tensor& input, const OptionalTensor& weight,
                      const OptionalTensor& bias, const OptionalTensor& running_mean,
                      const OptionalTensor& running_var, bool training, double momentum, double eps,
                      bool cudnn_enabled) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "batch_norm takes [batch, channels, ...], not ",
                    input.sizes());
  TORCH_CHECK_VALUE(training || (is_defined(running_mean) && is_defined(running_var)),
                    "batch_norm needs running_mean and running_var where it does not train");
  const Input x = input_of(input, {&weight, &bias, &running_mean, &running_var}, "batch_norm");
  if (!training) {
    return with_given_moments(x, weight, bias, running_mean, running_var, eps, cudnn_enabled);
  }
  Dims dims = range(2, input.dim());
  dims.insert(dims.begin(), 0);
  Moments moments;
  const at::Tensor y =
      normalize(x.local, over_channels(part(weight, x, {1}, "batch_norm"), input.dim()),
                over_channels(part(bias, x, {1}, "batch_norm"), input.dim()),
                averaging(x, dims, eps), &moments);
  const SpecPtr channels = aligned_spec(x.spec, {1});
  update_running(running_mean, moments.mean.flatten(), channels, momentum);
  update_running(running_var, (moments.squares / (moments.count - 1)).flatten(), channels,
                 momentum);
  return from_local(y, x.spec);
}

at::Tensor instance_norm(const at::Tensor& input, const OptionalTensor& weight,
                         const OptionalTensor& bias, const OptionalTensor& running_mean,
                         const OptionalTensor& running_var, bool use_input_stats, double momentum,
                         double eps, bool cudnn_enabled) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "instance_norm takes [batch, channels, ...], not ",
                    input.sizes());
  TORCH_CHECK_VALUE(use_input_stats || (is_defined(running_mean) && is_defined(running_var)),
                    "instance_norm needs running_mean and running_var without use_input_stats");
  const Input x = input_of(input, {&weight, &bias, &running_mean, &running_var}, "instance_norm");
  if (!use_input_stats) {
    return with_given_moments(x, weight, bias, running_mean, running_var, eps, cudnn_enabled);
  }
  const at::Tensor w = part(weight, x, {1}, "instance_norm");
  const at::Tensor b = part(bias, x, {1}, "instance_norm");
  const bool updates = is_defined(running_mean) || is_defined(running_var);
  const auto how = averaging(x, range(2, input.dim()), eps);
  if (is_local(x, *how) && !updates) {
    return from_local(at::instance_norm(x.local, w, b, {}, {}, true, momentum, eps, cudnn_enabled),
                      x.spec);
  }
  Moments moments;
  const at::Tensor y = normalize(x.local, over_channels(w, input.dim()),
                                 over_channels(b, input.dim()), how, &moments);
  if (updates) {
    // The mean over the batch; ranks with parts of it have summands.
    Dims shape = x.spec->global_shape();
    const SpecPtr summands = [&] {
      const SpecPtr channels = aligned_spec(x.spec, {1});
      Placements placements = channels->placements();
      for (const int64_t axis : axes_that_cut(*x.spec, {0})) {
        placements[static_cast<size_t>(axis)] = Partial();
      }
      return make_spec(x.spec->mesh(), channels->layout().with_placements(placements));
    }();
    const auto over_batch = [&](const at::Tensor& statistic) {
      return at::sum(statistic.reshape({x.local.size(0), x.local.size(1)}), 0) /
             static_cast<double>(shape[0]);
    };
    update_running(running_mean, over_batch(moments.mean), summands, momentum);
    update_running(running_var, over_batch(moments.squares / (moments.count - 1)), summands,
                   momentum);
  }
  return from_local(y, x.spec);
}

const Movement kNorm = {
    "any Shard; Replicate or equally cut parameters",
    "a Partial is reduced; count, mean and squared deviations where an averaged dimension is cut",
    "two sums for each mean; gradients of parameters become Partial(sum)"};

const bool kRegistered = OperatorFamily("normalization")
                             .above_autograd("aten::layer_norm", &layer_norm, kNorm)
                             .above_autograd("aten::native_layer_norm", &native_layer_norm, kNorm)
                             .above_autograd("aten::rms_norm", &rms_norm, kNorm)
                             .above_autograd("aten::group_norm", &group_norm, kNorm)
                             .above_autograd("aten::batch_norm", &batch_norm, kNorm)
                             .above_autograd("aten::instance_norm", &instance_norm, kNorm)
                             .registered();

}  // namespace
}  // namespace meshrun
