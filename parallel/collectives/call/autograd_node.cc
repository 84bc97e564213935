#include "parallel/collectives/call/autograd_node.h"

#include "ATen/ops/zeros.h"
#include "parallel/base/traced_calls.h"
#include "parallel/comm/interface/call_comparer.h"
#include "parallel/comm/v_collectives_of.h"

namespace meshrun {
namespace {

using Kind = CollectiveSpec::Kind;

Kind kind_of(const Collective& collective, Pass pass) {
  const CollectiveSpec& spec = collective.spec;
  return pass == Pass::kForward ? spec.kind : adjoint_of(spec.kind);
}

// Static, for errors.
const char* backward_name(const Collective& collective, Kind kind) {
  switch (kind) {
    case Kind::kAllGatherV:
      return "backward of all_gather_v";
    case Kind::kReduceScatterV:
      return "backward of reduce_scatter_v";
    case Kind::kGatherV:
      return "backward of gather_v";
    case Kind::kScatterV:
      return "backward of scatter_v";
    default:
      break;
  }
  // An all-to-all of a plan says in its words what it is.
  return collective.spec.agreed == 0 ? "backward of all_to_all_v" : "backward";
}

}  // namespace

NodeNumber number_of_node(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  if (is_traced(tensor)) return NodeNumber::untold();
  return number_of_node(group, device_of(tensor, group));
}

void count_without_node(c10d::ProcessGroup& group, const at::Tensor& tensor) {
  if (c10::GradMode::is_enabled()) number_of_node(group, tensor);
}

at::Tensor CollectiveNode::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                   const CollectivePtr& collective, Launch how) {
  // Inside forward() the mode is off, whatever it was outside.
  how.requires_grad = tensor.defined() && tensor.requires_grad();
  save_collective(ctx, collective,
                  how.requires_grad ? number_of_node(*collective->group, tensor) : NodeNumber());
  if (how.pass == Pass::kBackward) ctx->saved_data.emplace("adjoint", true);
  if (kind_of(*collective, how.pass) == Kind::kScatterV && !collective->is_root() &&
      tensor.defined()) {
    ctx->saved_data.emplace("shape", tensor.sizes());
  }
  return launch(*collective, tensor, how);
}

variable_list CollectiveNode::backward(AutogradContext* ctx, const variable_list& grads) {
  const Pass pass = ctx->saved_data.count("adjoint") > 0 ? Pass::kBackward : Pass::kForward;
  const auto kept = saved_collective(ctx);
  const CollectivePtr& collective = kept->collective;
  const Kind kind = kind_of(*collective, pass);
  const CalledAs name(backward_name(*collective, kind));
  const NodeNumber::Scope scope(kept->number);
  at::Tensor gradient = differentiable(grads[0], collective, opposite_of(pass));
  // Off the root the input was a template.
  if (kind == Kind::kScatterV && !collective->is_root()) {
    gradient = connected_zeros(gradient, ctx->saved_data.at("shape").toIntVector());
  }
  return only_first(std::move(gradient));
}

at::Tensor differentiable(const at::Tensor& tensor, const CollectivePtr& collective, Pass pass,
                          WorkPtr* work) {
  if (wants_gradient(tensor) && !collective->is_wrong()) {
    return CollectiveNode::apply(tensor, collective, Launch{.pass = pass, .work = work});
  }
  const c10::NoGradGuard no_grad;  // a backend may copy with tensor operators
  return launch(*collective, tensor, {pass, /*requires_grad=*/false, work});
}

at::Tensor connected_zeros(const at::Tensor& tensor, at::IntArrayRef shape) {
  if (wants_gradient(tensor)) return ConnectedZeros::apply(tensor, shape);
  return at::zeros(shape, tensor.options());
}

at::Tensor ConnectedZeros::forward(AutogradContext* ctx, const at::Tensor& tensor,
                                   at::IntArrayRef shape) {
  ctx->saved_data.emplace("shape", tensor.sizes());
  return at::zeros(shape, tensor.options());
}

variable_list ConnectedZeros::backward(AutogradContext* ctx, const variable_list& grads) {
  return only_first(connected_zeros(grads[0], ctx->saved_data.at("shape").toIntVector()));
}

}  // namespace meshrun
