#include "parallel/shard/shard_tensor.h"

#include <algorithm>
#include <sstream>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/alias.h"
#include "ATen/ops/div.h"
#include "ATen/ops/mul.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/inferred_layout.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

ShardLayout given(const at::Tensor& local, const ShardMesh::Ptr& mesh, const Placements& placements,
                  const std::map<int64_t, std::vector<Lengths>>& shapes) {
  const Placements dims = normalized(placements, local.dim());
  std::vector<DimCut> cuts;
  for (const int64_t extent : local.sizes()) cuts.push_back({{}, {extent}});
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (!dims[axis].is_shard()) continue;
    const auto found = shapes.find(static_cast<int64_t>(axis));
    DimCut& cut = cuts[static_cast<size_t>(dims[axis].dim())];
    if (found == shapes.end()) {
      throw ShardLayoutError(
          fmt::format("sharding_shapes says nothing of mesh dimension {}, which "
                      "is {}",
                      axis, meshrun::to_string(dims[axis])));
    }
    if (!cut.axes.empty()) {
      throw ShardLayoutError(
          fmt::format("mesh dimensions {} and {} both cut dimension {}: the "
                      "shapes have to be inferred",
                      cut.axes.front(), axis, dims[axis].dim()));
    }
    cut = {{static_cast<int64_t>(axis)}, {}};
    for (const Lengths& shape : found->second) {
      if (static_cast<int64_t>(shape.size()) != local.dim()) {
        throw ShardLayoutError(
            fmt::format("sharding_shapes has a shape of {} dimensions for a "
                        "tensor of {}",
                        shape.size(), local.dim()));
      }
      cut.sizes.push_back(shape[static_cast<size_t>(dims[axis].dim())]);
    }
  }
  return ShardLayout::with_cuts(mesh->shape(), dims, std::move(cuts));
}

// How many ranks a Partial(avg) is the mean of. Axes where the local gradients are not all the same
// (`gradient`; empty: they are) do not count.
int64_t ranks_averaged(const ShardTensorSpec& spec, const Placements& gradient = {}) {
  int64_t ranks = 1;
  for (size_t axis = 0; axis < spec.placements().size(); ++axis) {
    const Placement& placement = spec.placements()[axis];
    if (!placement.is_partial() || placement.op() != PartialOp::kAvg) continue;
    if (gradient.empty() || gradient[axis].is_replicate()) ranks *= spec.mesh()->shape()[axis];
  }
  return ranks;
}

// `local` as the summand that a Partial takes: of the mean's gradient it gets its share.
at::Tensor summand(const at::Tensor& local, const ShardTensorSpec& spec,
                   const Placements& gradient) {
  if (!spec.has_partial() || !local.requires_grad() || !c10::GradMode::is_enabled()) return local;
  for (const Placement& placement : spec.placements()) {
    if (!placement.is_partial() || placement.op() == PartialOp::kSum ||
        placement.op() == PartialOp::kAvg) {
      continue;
    }
    throw ShardTensorError(
        fmt::format("from_local: the gradient of one rank's part of {} depends on the other ranks' "
                    "parts: detach() it, or take a Partial(sum) or Partial(avg)",
                    meshrun::to_string(spec.placements())));
  }
  const int64_t ranks = ranks_averaged(spec, gradient);
  if (ranks == 1) return local;
  at::Tensor share = at::alias(local);
  // Undefined: zero, as everywhere in autograd.
  share.register_hook([ranks](const at::Tensor& arrived) {
    return arrived.defined() ? at::div(arrived, ranks) : arrived;
  });
  return share;
}

// The layout of local gradients. Null where none is said.
SpecPtr gradient_layout(const SpecPtr& spec, const OptionalPlacements& placements) {
  if (!placements) return {};
  const Placements said = normalized(*placements, spec->ndim());
  for (const Placement& placement : said) {
    if (!placement.is_partial() || placement.op() == PartialOp::kSum ||
        placement.op() == PartialOp::kAvg) {
      continue;
    }
    throw ShardLayoutError(fmt::format("grad_placements {} have a Partial that is not linear",
                                       meshrun::to_string(said)));
  }
  return make_spec(spec->mesh(), spec->layout().with_placements(said));
}

}  // namespace

ShardTensor::ShardTensor(const at::Tensor& local_tensor, const SpecPtr& spec,
                         BoolArgument requires_grad) {
  TORCH_CHECK_VALUE(local_tensor.defined() && !is_shard_tensor(local_tensor),
                    "ShardTensor takes a plain local tensor");
  if (local_tensor.sizes() != at::IntArrayRef(spec->local_shape())) {
    throw ShardTensorError(
        fmt::format("ShardTensor: the local tensor is [{}], and the spec says {}",
                    fmt::join(local_tensor.sizes(), ", "), spec->to_string()));
  }
  at::Tensor& self = *this;
  self = wrap(local_tensor.detach(), spec);
  if (!local_tensor.is_inference()) count_writes_with(self, local_tensor);
  if (requires_grad) self.set_requires_grad(true);
}

ShardTensor::ShardTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  if (!is_shard_tensor(*this)) throw ShardTensorError("the tensor is not a ShardTensor");
}

ShardTensor ShardTensor::from_local(const at::Tensor& local_tensor,
                                    const std::optional<DeviceMesh>& mesh,
                                    const OptionalPlacements& placements,
                                    const ShardingShapes& sharding_shapes,
                                    const std::optional<std::vector<int64_t>>& global_shape,
                                    const OptionalPlacements& grad_placements) {
  const ShardMesh::Ptr on = mesh ? ShardMesh::of(*mesh) : ShardMesh::global();
  const Placements said = placements.value_or(Placements(static_cast<size_t>(on->ndim())));
  const bool asks_the_ranks = sharding_shapes.kind() == ShardingShapes::Kind::kInfer;
  if (!asks_the_ranks && (!local_tensor.defined() || is_shard_tensor(local_tensor))) {
    throw ShardTensorError("from_local takes a plain local tensor");
  }
  return with_shard_errors([&] {
    ShardLayout layout;
    switch (sharding_shapes.kind()) {
      case ShardingShapes::Kind::kInfer:
        layout = inferred_layout(
            local_tensor, *on, said, global_shape,
            grad_placements ? std::optional<Placements>(*grad_placements) : std::nullopt);
        break;
      case ShardingShapes::Kind::kChunk:
        if (!global_shape) throw ShardLayoutError("from_local: chunk needs the global shape");
        layout = ShardLayout::chunk(on->shape(), said, *global_shape);
        break;
      case ShardingShapes::Kind::kGiven:
        layout = given(local_tensor, on, said, sharding_shapes.shapes());
        break;
    }
    if (global_shape && *global_shape != layout.global_shape()) {
      throw ShardLayoutError(
          fmt::format("from_local: the parts make [{}], and the global shape "
                      "is said to be [{}]",
                      fmt::join(layout.global_shape(), ", "), fmt::join(*global_shape, ", ")));
    }
    const SpecPtr spec = make_spec(on, std::move(layout));
    if (local_tensor.sizes() != at::IntArrayRef(spec->local_shape())) {
      throw ShardLayoutError(
          fmt::format("from_local: the local tensor is [{}], and it should be {}",
                      fmt::join(local_tensor.sizes(), ", "), spec->to_string()));
    }
    const SpecPtr gradient = gradient_layout(spec, grad_placements);
    const Placements of_gradient = gradient ? gradient->placements() : Placements();
    return ShardTensor(
        meshrun::from_local(summand(local_tensor, *spec, of_gradient), spec, gradient));
  });
}

at::Tensor ShardTensor::to_local(const OptionalPlacements& grad_placements) const {
  const SpecPtr gradient =
      with_shard_errors([&] { return gradient_layout(spec(), grad_placements); });
  const at::Tensor local = meshrun::to_local(*this, gradient);
  if (!local.requires_grad()) return alias_of(*this);
  const int64_t ranks = ranks_averaged(*spec(), gradient ? gradient->placements() : Placements());
  if (ranks > 1) {
    local.register_hook([ranks](const at::Tensor& arrived) {
      return arrived.defined() ? at::mul(arrived, ranks) : arrived;
    });
  }
  return local;
}

at::Tensor ShardTensor::full_tensor(const OptionalPlacements& grad_placements) const {
  const SpecPtr whole = target_spec(spec(), Placements(placements().size()));
  // Also on a mesh of one rank, where nothing moves: programs write into what they gathered.
  const bool is_whole = same(spec(), whole);
  const at::Tensor gathered = meshrun::redistribute(*this, whole, {}, {.own_memory = !is_whole});
  return ShardTensor(gathered).to_local(grad_placements);
}

std::vector<int64_t> ShardTensor::offsets() const {
  Lengths all;
  for (int64_t axis = 0; axis < spec()->mesh()->ndim(); ++axis) {
    all.push_back(spec()->offset(axis));
  }
  return all;
}

int64_t ShardTensor::offsets(IntArgument mesh_dim) const {
  const int64_t ndim = spec()->mesh()->ndim();
  if (mesh_dim < 0 || mesh_dim >= ndim) {
    throw ShardTensorError(fmt::format("offsets: mesh dimension {} of a mesh with {}",
                                       static_cast<int64_t>(mesh_dim), ndim));
  }
  return spec()->offset(mesh_dim);
}

ShardTensor ShardTensor::redistribute(const std::optional<DeviceMesh>& mesh,
                                      const OptionalPlacements& placements,
                                      BoolArgument async_op) const {
  if (!placements) throw ShardTensorError("redistribute needs placements");
  const DeviceMesh& own = spec()->mesh()->device_mesh();
  const bool is_other = mesh && !(*mesh == own);
  if (is_other) check_same_ranks(own, *mesh);
  for (const Placement& placement : *placements) {
    if (placement.is_partial()) {
      throw ShardTensorError(
          fmt::format("redistribute: a target is Shard or Replicate on every "
                      "axis, not {}",
                      meshrun::to_string(*placements)));
    }
  }
  const ShardMesh::Ptr on = is_other ? ShardMesh::of(*mesh) : spec()->mesh();
  const SpecPtr target = target_spec(spec(), on, *placements);
  return ShardTensor(
      meshrun::redistribute(*this, target, {}, {.own_memory = true, .async = async_op}));
}

bool ShardTensor::patches_enabled() {
  return any_shard_tensor_was_made() && !c10::impl::tls_is_dispatch_key_excluded(kFunctionKey);
}

std::string ShardTensor::to_string() const {
  std::ostringstream text;
  text << "ShardTensor " << spec()->to_string() << ":\n" << local_of(*this);
  return text.str();
}

std::ostream& operator<<(std::ostream& out, const ShardTensor& tensor) {
  return out << tensor.to_string();
}

ShardTensorPatchesGuard::ShardTensorPatchesGuard(BoolArgument enabled)
    : excluded_before_(c10::impl::tls_is_dispatch_key_excluded(kFunctionKey)) {
  c10::impl::tls_set_dispatch_key_excluded(kFunctionKey, !enabled);
}

ShardTensorPatchesGuard::~ShardTensorPatchesGuard() {
  c10::impl::tls_set_dispatch_key_excluded(kFunctionKey, excluded_before_);
}

}  // namespace meshrun
