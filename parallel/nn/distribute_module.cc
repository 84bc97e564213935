#include "parallel/nn/distribute_module.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/ordered_dict.h>

#include <set>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "parallel/base/no_collectives.h"
#include "parallel/base/tensor_hooks.h"
#include "parallel/comm/interface/call_scope.h"
#include "parallel/comm/interface/carried.h"
#include "parallel/nn/group_gradients.h"
#include "parallel/nn/module_agreement.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/shard_tensor.h"

namespace meshrun {
namespace {

using at::Tensor;
using NamedTensors = torch::OrderedDict<std::string, Tensor>;

// This rank's summand of a gradient that lies on the mesh as `spec` says: all ranks' add up to it.
Tensor summand_of(const Tensor& gradient, const ShardMesh::Ptr& mesh) {
  const ShardTensorImpl* impl = shard_impl(gradient);
  if (impl == nullptr) {
    return mesh->group()->getRank() == 0 ? gradient : at::zeros_like(gradient);
  }
  Placements wanted = impl->spec()->placements();
  for (Placement& placement : wanted) {
    if (placement.is_partial() && placement.op() != PartialOp::kSum) placement = Replicate();
  }
  const SpecPtr& spec = impl->spec();
  SpecPtr summed = spec;
  Tensor local = impl->local();
  if (wanted != spec->placements()) {
    summed = target_spec(spec, wanted);
    local = redistribute_local(local, spec, summed);
  }
  bool is_counted = true;
  bool is_cut = false;
  for (size_t axis = 0; axis < wanted.size(); ++axis) {
    is_counted = is_counted && !(wanted[axis].is_replicate() && mesh->coordinate()[axis] != 0);
    is_cut = is_cut || wanted[axis].is_shard();
  }
  if (is_counted && !is_cut) return local;
  Tensor summand = at::zeros(summed->global_shape(), local.options());
  if (!is_counted) return summand;
  Tensor part = summand;
  for (int64_t dim = 0; dim < summed->ndim(); ++dim) {
    const auto at = static_cast<size_t>(dim);
    part = part.narrow(dim, summed->box().offsets[at], summed->box().sizes[at]);
  }
  part.copy_(local);
  return summand;
}

// Whether the pass adds to the gradient, where torch::autograd::grad() returns one.
bool is_accumulated(const Tensor& parameter) {
  const auto* executed = torch::autograd::get_current_graph_task_exec_info();
  if (executed == nullptr || executed->empty()) return true;
  const auto accumulator = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto found = executed->find(accumulator.get());
  return found != executed->end() && found->second.needed_;
}

// What this rank alone can tell to be wrong; empty if nothing.
std::string find_problem(const NamedTensors& parameters, const ShardMesh::Ptr& mesh,
                         const DistributeModuleOptions& options) {
  if (!(options.bucket_cap_mb > 0)) {
    return fmt::format("bucket_cap_mb must be positive, got {}", options.bucket_cap_mb);
  }
  for (const auto& [name, placements] : options.placements) {
    const Tensor* parameter = parameters.find(name);
    if (parameter == nullptr) return fmt::format("the module has no parameter \"{}\"", name);
    if (static_cast<int64_t>(placements.size()) != mesh->ndim()) {
      return fmt::format("parameter \"{}\" is given {} on a mesh of {} dimensions", name,
                         to_string(placements), mesh->ndim());
    }
    const Placements actual = is_shard_tensor(*parameter) ? spec_of(*parameter)->placements()
                                                          : Placements(placements.size());
    if (placements != actual) {
      return fmt::format(
          "parameter \"{}\" is given {} and is {}: a module keeps the tensor that it was built "
          "with, so make that one a ShardTensor",
          name, to_string(placements), is_shard_tensor(*parameter) ? to_string(actual) : "plain");
    }
  }
  for (const auto& item : parameters) {
    const Tensor& parameter = item.value();
    if (is_shard_tensor(parameter)) {
      if (spec_of(parameter)->mesh() == mesh) continue;
      return fmt::format("parameter \"{}\" is on the mesh {}, not on {}", item.key(),
                         spec_of(parameter)->mesh()->device_mesh().to_string(),
                         mesh->device_mesh().to_string());
    }
    if (detail::mark_of(parameter) != nullptr) {
      return fmt::format("parameter \"{}\" is marked as shared already", item.key());
    }
    if (detail::has_other_hook(parameter)) {
      return fmt::format("parameter \"{}\" has a post-accumulate hook of its own", item.key());
    }
  }
  return "";
}

std::string describe(const DistributeModuleOptions& options) {
  std::string line =
      fmt::format("use_fp32_reduction={} bucket_cap_mb={}",
                  static_cast<bool>(options.use_fp32_reduction), options.bucket_cap_mb);
  for (const auto& [name, placements] : options.placements) {
    line += " " + name + "=" + to_string(placements);
  }
  return line;
}

}  // namespace

void distribute_module(torch::nn::Module& module, const std::optional<DeviceMesh>& on,
                       const DistributeModuleOptions& options) {
  const CallScope scope("distribute_module");
  check_collectives_allowed([] { return "distribute_module"; });
  const ShardMesh::Ptr mesh = on ? ShardMesh::of(*on) : ShardMesh::global();
  NamedTensors parameters("parameter");
  std::vector<Tensor> plain;  // parameters and buffers
  std::vector<Tensor> trained;
  std::set<const c10::TensorImpl*> seen;
  const auto visit = [&](const NamedTensors& tensors, bool are_parameters) {
    for (const auto& item : tensors) {
      const Tensor& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      if (are_parameters) parameters.insert(item.key(), tensor);
      if (is_shard_tensor(tensor)) continue;
      plain.push_back(carried(tensor.detach()));
      if (are_parameters && tensor.requires_grad()) trained.push_back(tensor);
    }
  };
  visit(module.named_parameters(), true);
  visit(module.named_buffers(), false);
  const c10::Device device = plain.empty() ? c10::Device(c10::kCPU) : plain.front().device();
  const std::string difference = detail::find_difference(*mesh->group(), device, describe(options),
                                                         detail::describe(parameters),
                                                         find_problem(parameters, mesh, options));
  if (!difference.empty()) throw ShardTensorError("distribute_module: " + difference);

  constexpr size_t kBroadcastBytes = size_t{64} * 1024 * 1024;
  constexpr double kMebibyte = 1024 * 1024;
  if (!plain.empty()) c10d::broadcast_coalesced(mesh->group(), plain, kBroadcastBytes, 0);
  if (mesh->size() == 1) {
    for (const Tensor& parameter : trained) announce_plain_leaf(parameter);
    return;
  }
  for (const Tensor& parameter : trained) {
    // Before the hook of announce_plain_leaf, which adds up this parameter's summands alone.
    const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> weak(
        parameter.getIntrusivePtr());
    detail::keep_hooks(parameter);
    parameter.register_hook([mesh, weak](const Tensor& gradient) -> Tensor {
      if (!gradient.defined()) return gradient;  // zero
      return is_accumulated(Tensor(weak.lock())) ? summand_of(gradient, mesh) : gradient;
    });
    announce_plain_leaf(parameter);
  }
  if (trained.empty()) return;
  detail::reduce_gradients_over(
      mesh->group(), trained,
      {.mean = false,
       .use_fp32 = options.use_fp32_reduction,
       .bucket_bytes = static_cast<int64_t>(options.bucket_cap_mb * kMebibyte)});
}

}  // namespace meshrun
