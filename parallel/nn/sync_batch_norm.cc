#include "parallel/nn/sync_batch_norm.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/collectives/call/autograd_node.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using Group = GroupArgument::Handle;

// All but the channels'.
std::vector<int64_t> averaged_dims(const Tensor& input) {
  std::vector<int64_t> dims(static_cast<size_t>(input.dim()) - 1);
  std::iota(dims.begin(), dims.end(), 1);
  dims[0] = 0;
  return dims;
}

Tensor over_channels(const Tensor& values, const Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = values.numel();
  return values.to(like.scalar_type()).view(shape);
}

Tensor widened(const Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

// Statistics of all ranks' elements, by channel, in float64.
struct Statistics {
  Tensor count;    // [1]
  Tensor mean;     // [channels]
  Tensor squares;  // [channels], sums of squared deviations
};

// Differentiable where `x` is.
Statistics statistics_of(const Tensor& x, const Group& group) {
  const std::vector<int64_t> dims = averaged_dims(x);
  const int64_t channels = x.size(1);
  const int64_t count = channels > 0 ? x.numel() / channels : 0;
  // A sum, not a mean: that of no elements is 0, and leads to x.
  const Tensor own_mean = at::sum(x, dims) / static_cast<double>(std::max<int64_t>(count, 1));
  const Tensor own_squares = at::sum((x - over_channels(own_mean, x)).square(), dims);
  const Tensor own_count = at::full({1}, count, own_mean.options());
  const Tensor message = at::cat({own_mean, own_squares, own_count}).to(at::kDouble).unsqueeze(0);
  const Tensor all = all_gather_v(message, {}, 0, true, group);  // [ranks, 2 channels + 1]
  const Tensor counts = all.narrow(1, 2 * channels, 1);
  const Tensor means = all.narrow(1, 0, channels);
  Statistics merged;
  merged.count = at::sum(counts, 0);
  merged.mean = at::sum(counts * means, 0) / merged.count.clamp_min(1);
  merged.squares =
      at::sum(all.narrow(1, channels, channels) + counts * (means - merged.mean).square(), 0);
  return merged;
}

Tensor inverse_deviation(const Statistics& statistics, double eps) {
  return at::rsqrt(statistics.squares / statistics.count.clamp_min(1) + eps);
}

void update(const Tensor& running, const Tensor& statistic, const Tensor& factor) {
  if (!running.defined()) return;
  running.copy_(running.to(at::kDouble) * (1 - factor) + factor * statistic);
}

// All of it from differentiable operators: what derivatives of higher order are taken of.
Tensor normalized(const Tensor& input, const Tensor& weight, double eps, const Group& group) {
  const Tensor x = widened(input);
  const Statistics statistics = statistics_of(x, group);
  const Tensor y = (x - over_channels(statistics.mean, x)) *
                   over_channels(inverse_deviation(statistics, eps), x);
  return (weight.defined() ? y * over_channels(weight, x) : y).to(input.scalar_type());
}

// What is not differentiated. LibTorch takes no undefined tensors as inputs of a function, so those
// of an absent weight or bias are empty.
struct Call {
  bool has_weight = false, has_bias = false;
  Tensor running_mean, running_var;
  double momentum = 0, eps = 0;
  Group group;
};

class SyncBatchNormFunction : public torch::autograd::Function<SyncBatchNormFunction> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& input, const Tensor& given_weight,
                        const Tensor& given_bias, const Call& call) {
    const Tensor weight = call.has_weight ? given_weight : Tensor();
    const Tensor bias = call.has_bias ? given_bias : Tensor();
    const Group& group = call.group;
    save_number(ctx, number_of_node(*group, input));
    const Tensor x = widened(input);
    const Statistics statistics = statistics_of(x, group);
    TORCH_CHECK_VALUE(!input.is_cpu() || statistics.count.item<double>() != 1,
                      "Expected more than 1 value per channel when training, got one in all, on ",
                      group->getSize(), " ranks; this one has an input of shape ", input.sizes());
    const Tensor factor = call.momentum * statistics.count.gt(0).to(at::kDouble);
    update(call.running_mean, statistics.mean, factor);
    update(call.running_var, statistics.squares / (statistics.count - 1).clamp_min(1), factor);
    const Tensor inverse = inverse_deviation(statistics, call.eps);
    ctx->save_for_backward({input, weight, bias, statistics.count, statistics.mean, inverse});
    ctx->saved_data.emplace("eps", call.eps);
    ctx->saved_data.emplace("group", at::IValue::make_capsule(group));

    Tensor y = x - over_channels(statistics.mean, x);
    y.mul_(over_channels(weight.defined() ? inverse * weight.to(at::kDouble) : inverse, x));
    if (bias.defined()) y.add_(over_channels(bias, x));
    return y.to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const Group group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(
        ctx->saved_data.at("group").toCapsule());
    const double eps = ctx->saved_data.at("eps").toDouble();
    const NodeNumber::Scope scope(saved_number(ctx));
    variable_list result(4);
    if (c10::GradMode::is_enabled()) {
      differentiable_backward(saved, grads[0], eps, group, result);
    } else {
      plain_backward(saved, grads[0], group, result);
    }
    return result;
  }

 private:
  static void plain_backward(const variable_list& saved, const Tensor& grad, const Group& group,
                             variable_list& result) {
    const Tensor &input = saved[0], &weight = saved[1], &bias = saved[2], &count = saved[3];
    const std::vector<int64_t> dims = averaged_dims(input);
    const Tensor x = widened(input), g = widened(grad);
    Tensor deviations = (x - over_channels(saved[4], x)).mul_(over_channels(saved[5], x));
    const Tensor own = at::cat({at::sum(g, dims), at::sum(g * deviations, dims)});
    const int64_t channels = input.size(1);
    if (weight.defined()) result[1] = own.narrow(0, channels, channels).to(weight.scalar_type());
    if (bias.defined()) result[2] = own.narrow(0, 0, channels).to(bias.scalar_type());
    // Also where the input needs no gradient: another rank's may.
    const Tensor sums = own.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true);
    CollectiveSpec spec;
    spec.say([] { return std::string(" (backward of sync_batch_norm)"); });
    detail::all_reduce(group, sums, c10d::ReduceOp::SUM, std::move(spec)).wait();
    const Tensor means = sums / count.clamp_min(1);
    deviations.mul_(over_channels(means.narrow(0, channels, channels), x));
    const Tensor inner = g - over_channels(means.narrow(0, 0, channels), x);
    const Tensor scale = weight.defined() ? saved[5] * weight.to(at::kDouble) : saved[5];
    result[0] = (inner - deviations).mul_(over_channels(scale, x)).to(input.scalar_type());
  }

  static void differentiable_backward(const variable_list& saved, const Tensor& grad, double eps,
                                      const Group& group, variable_list& result) {
    const Tensor &input = saved[0], &weight = saved[1], &bias = saved[2];
    if (bias.defined()) {
      result[2] = at::sum(widened(grad), averaged_dims(input)).to(bias.scalar_type());
    }
    variable_list inputs, gradients;
    for (const Tensor& tensor : {input, weight}) {
      if (tensor.defined() && tensor.requires_grad()) inputs.push_back(tensor);
    }
    if (inputs.empty()) return;
    const Tensor y = normalized(input, weight, eps, group);
    gradients = torch::autograd::grad({y}, inputs, {grad}, /*retain_graph=*/true,
                                      /*create_graph=*/true, /*allow_unused=*/true);
    if (input.requires_grad()) result[0] = gradients.front();
    if (weight.defined() && weight.requires_grad()) result[1] = gradients.back();
  }
};

}  // namespace

Tensor sync_batch_norm(const Tensor& input, const Tensor& weight, const Tensor& bias,
                       const Tensor& running_mean, const Tensor& running_var, double momentum,
                       double eps, const GroupArgument& group) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "sync_batch_norm takes [batch, channels, ...], not ",
                    input.sizes());
  const auto defined = [&](const Tensor& tensor) {
    return tensor.defined() ? tensor : at::empty({0}, input.options());
  };
  return SyncBatchNormFunction::apply(input, defined(weight), defined(bias),
                                      Call{.has_weight = weight.defined(),
                                           .has_bias = bias.defined(),
                                           .running_mean = running_mean,
                                           .running_var = running_var,
                                           .momentum = momentum,
                                           .eps = eps,
                                           .group = group.get()});
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                                     const GroupArgument& group)
    : BatchNormImplBase(options), group_(group) {}

void SyncBatchNormImpl::_check_input_dim(const Tensor& input) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "SyncBatchNorm takes [batch, channels, ...], not ",
                    input.sizes());
}

Tensor SyncBatchNormImpl::forward(const Tensor& input) {
  _check_input_dim(input);
  const bool tracks = options.track_running_stats();
  if (!is_training()) {
    if (!tracks) {
      TORCH_CHECK_VALUE(input.numel() == 0 || input.numel() != input.size(1),
                        "Expected more than 1 value per channel without running statistics, got "
                        "an input of shape ",
                        input.sizes());
    }
    return at::batch_norm(input, weight, bias, running_mean, running_var, /*training=*/!tracks, 0,
                          options.eps(), true);
  }
  double momentum = options.momentum().value_or(0);
  if (tracks) {
    num_batches_tracked += 1;
    // Absent: the mean of all batches so far.
    if (!options.momentum()) momentum = 1 / num_batches_tracked.item<double>();
  }
  return sync_batch_norm(input, weight, bias, running_mean, running_var, momentum, options.eps(),
                         group_);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "meshrun::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

}  // namespace meshrun
