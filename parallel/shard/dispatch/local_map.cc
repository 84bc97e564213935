#include "parallel/shard/dispatch/local_map.h"

#include <algorithm>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "fmt/format.h"
#include "parallel/collectives/call/autograd_node.h"
#include "parallel/shard/dispatch/promotion.h"
#include "parallel/shard/dispatch/tangents.h"
#include "torch/csrc/autograd/custom_function.h"

namespace meshrun {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void save_spec(AutogradContext* ctx, const char* name, const SpecPtr& spec) {
  ctx->saved_data.emplace(name, c10::IValue::make_capsule(spec));
}

SpecPtr saved_spec(AutogradContext* ctx, const char* name) {
  return c10::static_intrusive_pointer_cast<ShardTensorSpec>(ctx->saved_data.at(name).toCapsule());
}

// `local` counts writes together with the sharded tensor, whose memory it has: autograd finds what
// it saved on either side and somebody wrote on the other.
at::Tensor wrap_counted(const at::Tensor& local, const SpecPtr& spec) {
  // Derivatives of sgn() and the like are zeros without memory.
  if (local._is_zerotensor()) return wrap(at::zeros(local.sizes(), local.options()), spec);
  at::Tensor sharded = wrap(local.detach(), spec);
  count_writes_with(sharded, local);
  return sharded;
}

// Null where nothing was saved under that name.
SpecPtr saved_spec_or_null(AutogradContext* ctx, const char* name) {
  return ctx->saved_data.count(name) == 0 ? SpecPtr() : saved_spec(ctx, name);
}

// A local tensor between to_local() and from_local() has a layout of its values and one of its
// gradients. Along an axis:
//
//   values      gradients
//   Shard       Shard
//   Replicate   Replicate   all ranks compute the same
//   Replicate   Partial     each rank computes its own part with it: partial_where_replicated()
//   Partial     Replicate
//
// The gradient itself is such a tensor with the two exchanged, so derivatives of any order follow.
struct FromLocal : torch::autograd::Function<FromLocal> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& local, const SpecPtr& spec,
                            const SpecPtr& gradient) {
    ctx->set_materialize_grads(false);
    save_spec(ctx, "values", spec);
    if (gradient) save_spec(ctx, "gradient", gradient);
    return wrap_counted(local, spec);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    variable_list result(3);
    if (!gradients[0].defined()) return result;
    const SpecPtr values = saved_spec(ctx, "values");
    SpecPtr gradient = saved_spec_or_null(ctx, "gradient");
    if (!gradient) gradient = gradient_spec(values);
    result[0] = to_local(redistribute(promote(gradients[0], values->mesh()), gradient), values);
    return result;
  }
};

struct ToLocal : torch::autograd::Function<ToLocal> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor,
                            const SpecPtr& gradient) {
    save_spec(ctx, "gradient", gradient);
    const SpecPtr& values = spec_of(tensor);
    // Where nothing is Partial the two are alike.
    if (values->has_partial() || gradient->has_partial()) save_spec(ctx, "values", values);
    return alias_of(tensor);
  }
  // A local graph may say "undefined", which means zero, on some ranks alone, those whose part is
  // empty. What follows may communicate: it must follow on all ranks. So the gradient is always
  // materialized.
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {
        from_local(gradients[0], saved_spec(ctx, "gradient"), saved_spec_or_null(ctx, "values")),
        at::Tensor()};
  }
};

// `to` where it is Partial as `from` is, and Replicate where it alone is.
SpecPtr without_new_partial(const SpecPtr& from, const SpecPtr& to) {
  Placements placements = to->placements();
  const bool has_same_axes = from->mesh() == to->mesh();
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_partial()) continue;
    if (!has_same_axes || placements[axis] != from->placements()[axis]) {
      placements[axis] = Replicate();
    }
  }
  return placements == to->placements()
             ? to
             : make_spec(to->mesh(), to->layout().with_placements(placements));
}

// This rank's summand of what all ranks have: of Replicate values, to be Partial as `to` says.
at::Tensor summand_of(const at::Tensor& values, const ShardTensorSpec& from,
                      const ShardTensorSpec& to) {
  for (size_t axis = 0; axis < to.placements().size(); ++axis) {
    const Placement& placement = to.placements()[axis];
    // The average of equal values is each of them.
    if (!placement.is_partial() || placement == from.placements()[axis] ||
        placement.op() == PartialOp::kAvg) {
      continue;
    }
    if (placement.op() != PartialOp::kSum) {
      throw ShardTensorError(fmt::format("{} cannot become {}", from.to_string(), to.to_string()));
    }
    if (to.mesh()->coordinate()[axis] != std::max<int64_t>(placement.holder(), 0)) {
      return at::zeros_like(values);
    }
  }
  return values;
}

at::Tensor redistributed(const at::Tensor& tensor, const SpecPtr& to,
                         const RedistributeForm& form) {
  const SpecPtr whole = to->has_partial() ? without_new_partial(spec_of(tensor), to) : to;
  const bool is_async = form.async && whole == to;
  ShardTensorImpl::WorkPtr work;
  const at::Tensor& local = local_of(tensor);
  at::Tensor moved = redistribute_local(local, spec_of(tensor), whole, is_async ? &work : nullptr);
  // Alike on all ranks, which take the same steps. What wrap() or a summand makes of it may be a
  // copy on some of them: all count writes, so that all find the same one.
  const bool may_share = moved.is_alias_of(local) && !form.own_memory;
  if (form.own_memory && moved.is_alias_of(local)) {
    moved = moved.clone(at::MemoryFormat::Contiguous);
  }
  if (whole != to) moved = summand_of(moved, *whole, *to);
  const at::Tensor result = wrap(std::move(moved), to, std::move(work));
  if (may_share) count_writes_with(result, tensor);
  return result;
}

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& tensor, const SpecPtr& to,
                            const SpecPtr& gradient, const RedistributeForm& form) {
    ctx->set_materialize_grads(false);
    save_spec(ctx, "gradient", gradient);
    return redistributed(tensor, to, form);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    variable_list result(4);
    if (!gradients[0].defined()) return result;
    const SpecPtr spec = saved_spec(ctx, "gradient");
    result[0] = redistribute(promote(gradients[0], spec->mesh()), spec);
    return result;
  }
};

// A Replicate tensor that is an announced leaf: its gradient stays as it lies on the mesh, summands
// too, until the leaf's hook makes it plain, once for all uses of the leaf. A gradient that is
// recorded is plain at once: it may have to be added to plain ones.
struct FromLeaf : torch::autograd::Function<FromLeaf> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& leaf, const SpecPtr& spec) {
    ctx->set_materialize_grads(false);
    return wrap_counted(leaf, spec);
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    const at::Tensor& gradient = gradients[0];
    const bool becomes_plain =
        gradient.defined() && is_shard_tensor(gradient) && c10::GradMode::is_enabled();
    if (!becomes_plain) return {gradient, at::Tensor()};
    const SpecPtr& spec = spec_of(gradient);
    return {to_local(redistribute(gradient, replicated_spec(spec->mesh(), spec->global_shape()))),
            at::Tensor()};
  }
};

SpecPtr with_placements(const SpecPtr& spec, const Placements& placements) {
  if (placements == spec->placements()) return spec;
  return make_spec(spec->mesh(), spec->layout().with_placements(placements));
}

}  // namespace

at::Tensor to_local(const at::Tensor& tensor, const SpecPtr& gradient) {
  check_no_tangent(tensor, "to_local");
  if (wants_gradient(tensor)) {
    return ToLocal::apply(tensor, gradient ? gradient : gradient_spec(spec_of(tensor)));
  }
  // Local operators may save it, for the gradient of another operand.
  return c10::GradMode::is_enabled() ? alias_of(tensor) : local_of(tensor);
}

at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec, const SpecPtr& gradient) {
  check_no_tangent(local, "from_local");
  if (!wants_gradient(local)) return wrap_counted(local, spec);
  return FromLocal::apply(local, spec, gradient);
}

at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& to, const SpecPtr& gradient,
                        const RedistributeForm& form) {
  if (same(spec_of(tensor), to)) return form.own_memory ? tensor.clone() : tensor;
  check_no_tangent(tensor, "redistribute");
  if (!wants_gradient(tensor)) return redistributed(tensor, to, form);
  return Redistribute::apply(tensor, to, gradient ? gradient : gradient_spec(spec_of(tensor)),
                             form);
}

at::Tensor promote(const at::Tensor& tensor, const ShardMesh::Ptr& mesh) {
  if (!tensor.defined() || is_shard_tensor(tensor)) return tensor;
  return promote(tensor, replicated_spec(mesh, tensor.sizes()));
}

at::Tensor promote(const at::Tensor& tensor, const SpecPtr& replicated) {
  if (!tensor.defined() || is_shard_tensor(tensor)) return tensor;
  if (wants_gradient(tensor) && is_announced(tensor)) return FromLeaf::apply(tensor, replicated);
  return from_local(tensor, replicated);
}

SpecPtr partial_where_replicated(const SpecPtr& spec, const SpecPtr& computed) {
  Placements placements = gradient_spec(spec)->placements();
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    if (spec->placements()[axis].is_replicate() && !computed->placements()[axis].is_replicate()) {
      placements[axis] = Partial();
    }
  }
  return with_placements(spec, placements);
}

SpecPtr with_placement(const SpecPtr& spec, IntArgument axis, const Placement& placement) {
  Placements placements = spec->placements();
  placements[static_cast<size_t>(axis)] = placement;
  return target_spec(spec, std::move(placements));
}

SpecPtr without_partial(const SpecPtr& spec) { return gradient_spec(spec); }

SpecPtr with_whole_dims(const SpecPtr& spec, const std::vector<int64_t>& dims) {
  Placements placements = gradient_spec(spec)->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard() &&
        std::find(dims.begin(), dims.end(), placement.dim()) != dims.end()) {
      placement = Replicate();
    }
  }
  return placements == spec->placements() ? spec : target_spec(spec, std::move(placements));
}

}  // namespace meshrun
