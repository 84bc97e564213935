#include "parallel/nn/clip_grad.h"

#include <ATen/ops/ones.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "c10/util/Exception.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/nn/sharded_parameters.h"
#include "parallel/nn/total_norm.h"
#include "parallel/nn/zero_redundancy_optimizer.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {
namespace {

using at::Tensor;
using detail::NormPart;
using Tensors = std::vector<Tensor>;

// Part of the norm from a sharded gradient. Without a gradient `tensor` is the parameter, and
// `has_values` is false: the part then has groups but no values.
NormPart sharded_part(const Tensor& tensor, bool has_values) {
  SpecPtr spec = spec_of(tensor);
  NormPart part;
  if (has_values) part.values = local_of(tensor);
  if (spec->has_partial()) {
    const SpecPtr reduced = gradient_spec(spec);
    if (has_values) part.values = redistribute_local(part.values, spec, reduced);
    spec = reduced;
  }
  for (int64_t axis = 0; axis < spec->mesh()->ndim(); ++axis) {
    if (spec->placements()[static_cast<size_t>(axis)].is_shard()) {
      part.groups.push_back(spec->mesh()->axis_group(axis));
    }
  }
  return part;
}

// Each once: LibTorch's parameters() lists a tensor under all of its names.
Tensors without_repeats(const Tensors& parameters) {
  Tensors distinct;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const Tensor& parameter : parameters) {
    if (parameter.defined() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
      distinct.push_back(parameter);
    }
  }
  return distinct;
}

// Groups follow from the parameters, so a rank without a gradient takes part too.
std::vector<NormPart> parts_of(const Tensors& given) {
  std::vector<NormPart> parts;
  const Tensors parameters = without_repeats(given);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& parameter = parameters[i];
    if (is_reduced_in_step(parameter)) {
      throw ZeroRedundancyError(c10::str(
          "parameter ", i, " of shape ", parameter.sizes(),
          " is a ZeroRedundancyOptimizer's, which adds gradients up within step(): its gradient is "
          "this rank's own. Pass the optimizer to clip_grad_norm_ or get_total_norm instead"));
    }
    const Tensor& gradient = parameter.grad();
    if (is_shard_tensor(gradient.defined() ? gradient : parameter)) {
      parts.push_back(sharded_part(gradient.defined() ? gradient : parameter, gradient.defined()));
      continue;
    }
    NormPart part{.values = gradient, .groups = {}};
    if (const auto shard = announced_shard(parameter)) part.groups.push_back(shard->group);
    parts.push_back(std::move(part));
  }
  return parts;
}

Tensors parameters_of(const torch::optim::Optimizer& optimizer) {
  Tensors parameters;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

std::vector<NormPart> parts_of(torch::optim::Optimizer& optimizer) {
  auto* const zero = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer);
  if (zero == nullptr) return parts_of(parameters_of(optimizer));
  std::vector<NormPart> parts;
  for (const auto& [parameter, slice] : zero->reduced_gradients()) {
    NormPart part{.values = slice, .groups = {zero->group()}};
    if (const auto shard = announced_shard(parameter)) part.groups.push_back(shard->group);
    parts.push_back(std::move(part));
  }
  return parts;
}

// How many have a gradient: one that is missing on some ranks of its groups counts on all of them.
double count_gradients(const std::vector<NormPart>& parts) {
  double count = 0;
  for (const NormPart& part : parts) {
    const Tensor one = part.values.defined() ? at::ones({1}) : Tensor();
    count += detail::total_norm({{.values = one, .groups = part.groups}},
                                std::numeric_limits<double>::infinity());
  }
  return count;
}

double norm_of_parts(const std::vector<NormPart>& parts, double norm_type,
                     bool error_if_nonfinite) {
  if (norm_type == 0) return count_gradients(parts);
  const double norm = detail::total_norm(parts, norm_type);
  TORCH_CHECK(!error_if_nonfinite || std::isfinite(norm), "The total norm of order ", norm_type,
              " for gradients from `parameters` is non-finite (", std::isnan(norm) ? "nan" : "inf",
              "), so it cannot be clipped. To disable this error and scale the gradients with the "
              "non-finite norm anyway, set `error_if_nonfinite=false`");
  return norm;
}

void scale_gradients(const Tensors& parameters, double max_norm, double norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  if (coefficient >= 1) return;  // not if it is not a number
  const at::NoGradGuard no_grad;
  for (const Tensor& parameter : without_repeats(parameters)) {
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(coefficient);
  }
}

}  // namespace

double get_total_norm(const Tensors& parameters, double norm_type,
                      BoolArgument error_if_nonfinite) {
  return norm_of_parts(parts_of(parameters), norm_type, error_if_nonfinite);
}

double get_total_norm(std::initializer_list<Tensor> parameters, double norm_type,
                      BoolArgument error_if_nonfinite) {
  return get_total_norm(Tensors(parameters), norm_type, error_if_nonfinite);
}

double get_total_norm(const Tensor& parameter, double norm_type, BoolArgument error_if_nonfinite) {
  return get_total_norm(Tensors(1, parameter), norm_type, error_if_nonfinite);
}

double get_total_norm(torch::optim::Optimizer& optimizer, double norm_type,
                      BoolArgument error_if_nonfinite) {
  return norm_of_parts(parts_of(optimizer), norm_type, error_if_nonfinite);
}

double clip_grad_norm_(const Tensors& parameters, double max_norm, double norm_type,
                       BoolArgument error_if_nonfinite) {
  const CallScope scope("clip_grad_norm_", CallScope::Comparison::kNone);
  const double norm = get_total_norm(parameters, norm_type, error_if_nonfinite);
  scale_gradients(parameters, max_norm, norm);
  return norm;
}

double clip_grad_norm_(std::initializer_list<Tensor> parameters, double max_norm, double norm_type,
                       BoolArgument error_if_nonfinite) {
  return clip_grad_norm_(Tensors(parameters), max_norm, norm_type, error_if_nonfinite);
}

double clip_grad_norm_(const Tensor& parameter, double max_norm, double norm_type,
                       BoolArgument error_if_nonfinite) {
  return clip_grad_norm_(Tensors(1, parameter), max_norm, norm_type, error_if_nonfinite);
}

double clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm, double norm_type,
                       BoolArgument error_if_nonfinite) {
  const CallScope scope("clip_grad_norm_", CallScope::Comparison::kNone);
  const double norm = get_total_norm(optimizer, norm_type, error_if_nonfinite);
  scale_gradients(parameters_of(optimizer), max_norm, norm);
  return norm;
}

}  // namespace meshrun
