#include "parallel/shard/scatter_tensor.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/tensor.h"
#include "core/fingerprint.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/collectives/plans/planned_collective.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

// What all ranks must have alike beside their tensors.
struct Agreement {
  uint64_t digest = 0;
  std::string words;

  CollectiveSpec in(CollectiveSpec spec) const {
    spec.agreed = digest;
    spec.say([words = words] { return words; });
    return spec;
  }
};

// LibTorch's own bound on dimensions.
constexpr size_t kMostDims = 64;

struct Metadata {
  Lengths shape;
  at::ScalarType dtype = at::kFloat;
};

// State of one call; `source`: number of the source rank in the mesh's group.
struct Call {
  ShardMesh::Ptr mesh;
  int source = 0;
  bool is_source = false;
  at::Device device;
  Agreement agreement;
};

// What is wrong with the source's tensor; empty: nothing.
std::string problem_of(const at::Tensor& tensor, const std::optional<Lengths>& shape,
                       std::optional<at::ScalarType> dtype) {
  if (!tensor.defined()) return "scatter_tensor: the tensor is undefined on the source";
  if (is_shard_tensor(tensor)) return "scatter_tensor takes a plain tensor, not a ShardTensor";
  if (shape && tensor.sizes() != at::IntArrayRef(*shape)) {
    return fmt::format("scatter_tensor: the source's tensor is [{}], and global_shape is [{}]",
                       fmt::join(tensor.sizes(), ", "), fmt::join(*shape, ", "));
  }
  if (dtype && tensor.scalar_type() != *dtype) {
    return fmt::format("scatter_tensor: the source's tensor is {}, and dtype is {}",
                       c10::toString(tensor.scalar_type()), c10::toString(*dtype));
  }
  return {};
}

// A piece that the source alone has, on all ranks of a group.
at::Tensor broadcast(const at::Tensor& values, int64_t size, int source, bool is_source,
                     const ShardMesh::Group& group, const Agreement& agreement,
                     const std::string& problem) {
  Lengths sizes(static_cast<size_t>(group->getSize()));
  sizes[static_cast<size_t>(source)] = size;
  const PlannedCollective collective(agreement.in(CollectiveSpec::all_gather_v(sizes, 0)), group);
  if (!problem.empty()) collective.refuse(problem);
  return collective(is_source ? values : values.narrow(0, 0, 0));
}

Metadata tell_metadata(const at::Tensor& tensor, const Call& call, const std::string& problem) {
  Lengths values(2 + kMostDims);
  if (call.is_source && problem.empty()) {
    values[0] = static_cast<int64_t>(tensor.scalar_type());
    values[1] = tensor.dim();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), values.begin() + 2);
  }
  const at::Tensor told =
      broadcast(at::tensor(values, at::kLong).to(call.device), 2 + kMostDims, call.source,
                call.is_source, call.mesh->group(), call.agreement, problem)
          .cpu();
  const auto* numbers = told.const_data_ptr<int64_t>();
  return {{numbers + 2, numbers + 2 + numbers[1]}, static_cast<at::ScalarType>(numbers[0])};
}

at::Tensor part_of(at::Tensor whole, const Box& box) {
  for (size_t d = 0; d < box.sizes.size(); ++d) {
    whole =
        whole.narrow(static_cast<int64_t>(d), box.sizes[d] == 0 ? 0 : box.offsets[d], box.sizes[d]);
  }
  return whole;
}

// The dimension that the ranks of the mesh cut one after the other, and nothing else does: its
// slices travel from where they lie. -1: none.
int64_t dim_cut_by_all(const ShardLayout& layout) {
  if (layout.placements().empty() || !layout.placements()[0].is_shard()) return -1;
  const Placement& first = layout.placements()[0];
  const auto is_first = [&](const Placement& placement) { return placement == first; };
  return std::all_of(layout.placements().begin(), layout.placements().end(), is_first) ? first.dim()
                                                                                       : -1;
}

// The parts of the ranks that have the source's coordinates on all Replicate axes.
at::Tensor scatter(const at::Tensor& tensor, const ShardTensorSpec& spec, const Call& call,
                   const at::TensorOptions& options, const std::string& problem) {
  const ShardLayout& layout = spec.layout();
  const int64_t dim = dim_cut_by_all(layout);
  const auto coordinates = all_coordinates(layout.mesh_shape());
  const Lengths& source = coordinates[static_cast<size_t>(call.source)];
  Lengths sizes;
  std::vector<at::Tensor> parts;
  for (const Lengths& rank : coordinates) {
    const Box box = layout.box(rank);
    bool receives = true;
    for (size_t axis = 0; axis < rank.size(); ++axis) {
      if (!layout.placements()[axis].is_shard() && rank[axis] != source[axis]) receives = false;
    }
    if (dim >= 0) {
      sizes.push_back(box.sizes[static_cast<size_t>(dim)]);
      continue;
    }
    sizes.push_back(receives ? numel(box) : 0);
    if (call.is_source && problem.empty() && receives) {
      parts.push_back(part_of(tensor, box).reshape({-1}));
    }
  }
  const PlannedCollective collective(
      call.agreement.in(CollectiveSpec::scatter_v(sizes, std::max<int64_t>(dim, 0), call.source)),
      call.mesh->group());
  if (!problem.empty()) collective.refuse(problem);
  if (dim >= 0) {
    return collective(call.is_source ? tensor : at::empty(spec.local_shape(), options));
  }
  const at::Tensor packed = parts.empty()       ? at::empty({0}, options)
                            : parts.size() == 1 ? parts[0]
                                                : at::cat(parts);
  return collective(packed);
}

}  // namespace

ShardTensor scatter_tensor(const at::Tensor& tensor, IntArgument global_src, const DeviceMesh& mesh,
                           const Placements& placements,
                           const std::optional<std::vector<int64_t>>& global_shape,
                           std::optional<at::ScalarType> dtype, BoolArgument requires_grad) {
  const auto found =
      std::find(mesh.ranks().begin(), mesh.ranks().end(), static_cast<int64_t>(global_src));
  if (found == mesh.ranks().end()) {
    throw ShardTensorError(fmt::format("scatter_tensor: rank {} is not in the mesh {}",
                                       static_cast<int64_t>(global_src), mesh.to_string()));
  }
  for (const Placement& placement : placements) {
    if (placement.is_partial()) {
      throw ShardTensorError(
          fmt::format("scatter_tensor: a target is Shard or Replicate on every "
                      "axis, not {}",
                      to_string(placements)));
    }
  }
  Call call{
      ShardMesh::of(mesh), static_cast<int>(found - mesh.ranks().begin()), false, at::kCPU, {}};
  call.is_source = call.mesh->group()->getRank() == call.source;
  call.device = call.mesh->device();
  call.agreement.words =
      fmt::format(" (scatter_tensor from rank {} to {}{})", static_cast<int64_t>(global_src),
                  to_string(placements),
                  global_shape ? fmt::format(", global shape [{}]", fmt::join(*global_shape, ", "))
                               : std::string());
  call.agreement.digest = Fingerprint(call.agreement.words) | 1;

  const at::NoGradGuard no_grad;
  std::string problem = call.is_source ? problem_of(tensor, global_shape, dtype) : std::string();
  Metadata metadata;
  if (global_shape && dtype) {
    metadata = {*global_shape, *dtype};
  } else {
    metadata = tell_metadata(tensor, call, problem);
  }
  const SpecPtr spec = with_shard_errors([&] {
    return make_spec(call.mesh, ShardLayout::split(call.mesh->shape(), placements, metadata.shape));
  });
  const at::TensorOptions options = at::TensorOptions(call.device).dtype(metadata.dtype);
  const at::Tensor whole =
      call.is_source && problem.empty() ? tensor.detach().to(call.device) : at::Tensor();
  at::Tensor part = scatter(whole, *spec, call, options, problem);

  const Lengths source = all_coordinates(spec->mesh()->shape())[static_cast<size_t>(call.source)];
  const Lengths& self = spec->mesh()->coordinate();
  for (size_t axis = 0; axis < source.size(); ++axis) {
    if (spec->placements()[axis].is_shard()) continue;
    bool takes_part = spec->mesh()->shape()[axis] > 1;
    for (size_t later = axis + 1; later < source.size(); ++later) {
      if (!spec->placements()[later].is_shard() && self[later] != source[later]) takes_part = false;
    }
    if (!takes_part) continue;
    part = broadcast(part.reshape({-1}), numel(spec->box()), static_cast<int>(source[axis]),
                     self[axis] == source[axis],
                     spec->mesh()->axis_group(static_cast<int64_t>(axis)), call.agreement, {});
  }
  return ShardTensor(part.reshape(spec->local_shape()), spec, requires_grad);
}

}  // namespace meshrun
