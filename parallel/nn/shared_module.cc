#include "parallel/nn/shared_module.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "parallel/base/no_collectives.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/nn/group_gradients.h"
#include "parallel/nn/module_agreement.h"
#include "parallel/nn/shard_conflict.h"
#include "parallel/nn/sharded_parameters.h"

namespace meshrun {
namespace {

using at::Tensor;
using detail::has_other_hook;
using detail::mark_of;
using NamedTensors = torch::OrderedDict<std::string, Tensor>;

// Each once, under its first name.
NamedTensors parameters_of(const torch::nn::Module& module, bool recurse) {
  NamedTensors parameters("parameter");
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters(recurse)) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      parameters.insert(item.key(), item.value());
    }
  }
  return parameters;
}

// All but the pieces that the ranks of this group hold: of those each rank has all of the gradient.
NamedTensors trained(const NamedTensors& parameters, const c10d::ProcessGroup& group) {
  NamedTensors chosen("parameter");
  for (const auto& item : parameters) {
    const auto shard = announced_shard(item.value());
    if (shard && detail::have_same_ranks(*shard->group, group)) continue;
    if (item.value().requires_grad()) chosen.insert(item.key(), item.value());
  }
  return chosen;
}

std::string already_marked(const std::string& name, const c10d::ProcessGroup& by,
                           const c10d::ProcessGroup& group) {
  const std::string marked =
      c10::str("parameter \"", name, "\" is marked as shared already, over ");
  if (detail::have_same_ranks(by, group)) {
    return c10::str(marked,
                    "the ranks of this group: its gradients are summed there without a second "
                    "mark. An FNO and a DistributedAFNO mark themselves");
  }
  return c10::str(marked, "another group, of ", by.getSize(),
                  " ranks; unmark_module_as_shared() comes first");
}

// What this rank alone can tell to be wrong; empty if nothing.
std::string find_problem(const NamedTensors& parameters, const SharedModuleOptions& options,
                         const c10d::ProcessGroup& group) {
  if (parameters.is_empty()) {
    return "the module has no parameter that requires a gradient, so there is nothing to share";
  }
  if (!(options.bucket_cap_mb > 0)) {
    return c10::str("bucket_cap_mb must be positive, got ", options.bucket_cap_mb);
  }
  const c10::Device device = parameters.front().value().device();
  for (const auto& item : parameters) {
    if (const auto* mark = mark_of(item.value())) {
      return already_marked(item.key(), mark->gradients->group(), group);
    }
    if (has_other_hook(item.value())) {
      return c10::str("parameter \"", item.key(), "\" has a post-accumulate hook of its own");
    }
    if (item.value().device() != device) {
      return c10::str("the module's parameters are on ", device, " and on ", item.value().device(),
                      "; move all of them to one device with to()");
    }
  }
  return "";
}

// One line: what the ranks must have alike.
std::string describe(const SharedModuleOptions& options) {
  return c10::str("recurse=", options.recurse, " mean=", options.mean,
                  " use_fp32_reduction=", options.use_fp32_reduction,
                  " bucket_cap_mb=", options.bucket_cap_mb);
}

// Whether the parameter's gradients are summed over the ranks of this group.
bool is_summed_over(const Tensor& parameter, const c10d::ProcessGroup& group) {
  const auto* const mark = mark_of(parameter);
  return mark != nullptr && !mark->gradients->is_mean() &&
         detail::have_same_ranks(mark->gradients->group(), group);
}

NamedTensors without_summed(const NamedTensors& parameters, const c10d::ProcessGroup& group) {
  NamedTensors chosen("parameter");
  for (const auto& item : parameters) {
    if (!is_summed_over(item.value(), group)) chosen.insert(item.key(), item.value());
  }
  return chosen;
}

void mark(torch::nn::Module& module, const SharedModuleOptions& options, bool only_unmarked) {
  check_collectives_allowed([] { return "mark_module_as_shared"; });
  const CallScope scope("mark_module_as_shared");
  const auto group = options.process_group.get();
  const std::map<std::string, ParameterShard> shards = parameter_shards(module);  // announces them
  NamedTensors parameters = trained(parameters_of(module, options.recurse), *group);
  if (only_unmarked) parameters = without_summed(parameters, *group);
  std::string problem = detail::find_shard_conflict(shards, parameters, group);
  if (problem.empty()) problem = find_problem(parameters, options, *group);
  const c10::Device device =
      parameters.is_empty() ? c10::Device(c10::kCPU) : parameters.front().value().device();
  const std::string difference = detail::find_difference(*group, device, describe(options),
                                                         detail::describe(parameters), problem);
  if (!difference.empty()) throw SharedModuleError("mark_module_as_shared: " + difference);

  constexpr double kMebibyte = 1024 * 1024;
  detail::reduce_gradients_over(
      group, parameters.values(),
      {.mean = options.mean,
       .use_fp32 = options.use_fp32_reduction,
       .bucket_bytes = static_cast<int64_t>(options.bucket_cap_mb * kMebibyte),
       .names = parameters.keys()});
}

}  // namespace

void mark_module_as_shared(torch::nn::Module& module, const SharedModuleOptions& options) {
  mark(module, options, false);
}

void detail::share_unmarked_parameters(torch::nn::Module& module,
                                       const GroupArgument::Handle& group) {
  const std::vector<Tensor> parameters = module.parameters();
  const bool are_summed =
      std::all_of(parameters.begin(), parameters.end(), [&](const Tensor& parameter) {
        return !parameter.requires_grad() || is_summed_over(parameter, *group);
      });
  if (are_summed) return;
  SharedModuleOptions options;
  options.process_group = group;
  mark(module, options, true);
}

void mark_module_as_shared(torch::nn::Module& module,
                           const std::optional<std::string>& process_group, BoolArgument recurse,
                           BoolArgument use_fp32_reduction) {
  SharedModuleOptions options;
  options.process_group = process_group;
  options.recurse = recurse;
  options.use_fp32_reduction = use_fp32_reduction;
  mark_module_as_shared(module, options);
}

void unmark_module_as_shared(torch::nn::Module& module, BoolArgument recurse) {
  const NamedTensors parameters = parameters_of(module, recurse);
  parameter_shards(module);  // announces them
  std::vector<Tensor> marked;
  for (const auto& item : parameters) {
    if (mark_of(item.value()) != nullptr) {
      marked.push_back(item.value());
    } else if (item.value().requires_grad() && !announced_shard(item.value())) {
      throw SharedModuleError("unmark_module_as_shared: parameter \"" + item.key() +
                              "\" is not marked as shared; see mark_module_as_shared()");
    }
  }
  if (marked.empty()) {
    throw SharedModuleError("unmark_module_as_shared: the module has no parameter that is marked");
  }
  for (const Tensor& parameter : marked) {
    const detail::GroupGradientHook& hook = *mark_of(parameter);
    hook.gradients->leave(hook.index);
    parameter.remove_hook(hook.before_hook);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

}  // namespace meshrun
