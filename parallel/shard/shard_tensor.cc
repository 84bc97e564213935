#include "parallel/shard/shard_tensor.h"

#include <algorithm>
#include <sstream>

#include "ATen/ops/tensor.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/collectives/transpose_plan.h"
#include "parallel/shard/dispatch/local_map.h"

namespace meshrun {
namespace {

using Extents = std::vector<int64_t>;

// What every rank says of its part, in numbers.
Extents header_of(const at::Tensor& local, const Placements& placements) {
  Extents header = {static_cast<int64_t>(local.scalar_type()), local.dim()};
  for (const Placement& placement : placements) {
    header.push_back(static_cast<int64_t>(placement.kind()));
    header.push_back(placement.is_partial() ? static_cast<int64_t>(placement.op())
                                            : placement.dim());
  }
  header.insert(header.end(), local.sizes().begin(), local.sizes().end());
  return header;
}

ShardLayout inferred(const at::Tensor& local, const ShardMesh::Ptr& mesh,
                     const Placements& placements) {
  const GroupArgument group(mesh->group());
  const Extents header = header_of(local, placements);
  const auto length = static_cast<int64_t>(header.size());
  const Extents lengths = gather_extents(length, "", group, local);
  const at::Tensor own = at::tensor(header, at::kLong).to(local.device());
  const at::Tensor all = all_gather_v(own, Sizes(lengths), 0, true, group).cpu();
  const auto* numbers = all.const_data_ptr<int64_t>();
  const size_t prefix = 2 + 2 * placements.size();
  const auto coordinates = all_coordinates(mesh->shape());
  std::vector<Extents> shapes;
  Extents first;
  for (size_t rank = 0; rank < coordinates.size(); ++rank) {
    const Extents said(numbers, numbers + lengths[rank]);
    numbers += lengths[rank];
    Extents head(said.begin(),
                 said.begin() + static_cast<std::ptrdiff_t>(std::min(prefix, said.size())));
    if (rank == 0) first = head;
    if (head != first) {
      throw ShardTensorError(fmt::format(
          "from_local: the rank at mesh coordinate [{}] has dtype, number of dimensions and "
          "placements [{}], and the one at [{}] has [{}]",
          fmt::join(coordinates[0], ", "), fmt::join(first, ", "),
          fmt::join(coordinates[rank], ", "), fmt::join(head, ", ")));
    }
    shapes.emplace_back(said.begin() + static_cast<std::ptrdiff_t>(prefix), said.end());
  }
  return ShardLayout::infer(mesh->shape(), placements, shapes);
}

ShardLayout given(const at::Tensor& local, const ShardMesh::Ptr& mesh, const Placements& placements,
                  const std::map<int64_t, std::vector<Extents>>& shapes) {
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
    for (const Extents& shape : found->second) {
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
  if (!requires_grad) return;
  self.set_requires_grad(true);
  const SpecPtr gradient = gradient_spec(spec);
  self.register_hook([gradient](const at::Tensor& arrived) {
    return meshrun::redistribute(promote(arrived, gradient->mesh()), gradient);
  });
}

ShardTensor::ShardTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  if (!is_shard_tensor(*this)) throw ShardTensorError("the tensor is not a ShardTensor");
}

ShardTensor ShardTensor::from_local(const at::Tensor& local_tensor,
                                    const std::optional<DeviceMesh>& mesh,
                                    const std::optional<Placements>& placements,
                                    const ShardingShapes& sharding_shapes,
                                    const std::optional<std::vector<int64_t>>& global_shape) {
  const ShardMesh::Ptr on = mesh ? ShardMesh::of(*mesh) : ShardMesh::global();
  const Placements said = placements.value_or(Placements(static_cast<size_t>(on->ndim())));
  TORCH_CHECK_VALUE(local_tensor.defined() && !is_shard_tensor(local_tensor),
                    "from_local takes a plain local tensor");
  return with_shard_errors([&] {
    ShardLayout layout;
    switch (sharding_shapes.kind()) {
      case ShardingShapes::Kind::kInfer:
        layout = inferred(local_tensor, on, said);
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
    return ShardTensor(meshrun::from_local(local_tensor, spec));
  });
}

at::Tensor ShardTensor::to_local(const std::optional<Placements>& grad_placements) const {
  SpecPtr gradient;
  if (grad_placements) {
    gradient = with_shard_errors([&] {
      return make_spec(spec()->mesh(),
                       spec()->layout().with_placements(normalized(*grad_placements, dim())));
    });
  }
  return meshrun::to_local(*this, gradient);
}

at::Tensor ShardTensor::full_tensor(const std::optional<Placements>& grad_placements) const {
  const SpecPtr whole = target_spec(spec(), Placements(placements().size()));
  const at::Tensor gathered = meshrun::redistribute(*this, whole);
  return ShardTensor(gathered).to_local(grad_placements);
}

std::vector<int64_t> ShardTensor::offsets() const {
  Extents all;
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
                                      const std::optional<Placements>& placements,
                                      BoolArgument async_op) const {
  if (!placements) throw ShardTensorError("redistribute needs placements");
  if (mesh && !(*mesh == spec()->mesh()->device_mesh())) {
    throw ShardTensorError(
        fmt::format("redistribute stays on one mesh: the tensor is on {}, and "
                    "{} was asked",
                    spec()->mesh()->device_mesh().to_string(), mesh->to_string()));
  }
  for (const Placement& placement : *placements) {
    if (placement.is_partial()) {
      throw ShardTensorError(
          fmt::format("redistribute: a target is Shard or Replicate on every "
                      "axis, not {}",
                      meshrun::to_string(*placements)));
    }
  }
  const SpecPtr target = target_spec(spec(), *placements);
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
