#include "parallel/shard/operators/reduced.h"

#include <numeric>
#include <utility>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/grad_mode.h"
#include "parallel/collectives/all_gather_v.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/redistribute/redistribution_plans.h"

namespace meshrun {

// A value that all ranks along the axes have, for each rank's own part of a computation. Its
// gradient is the sum of theirs.
at::Tensor on_each_rank(const at::Tensor& value, const ShardMesh::Ptr& mesh,
                        const std::vector<int64_t>& axes);

std::vector<int64_t> reduced_dims(at::OptionalIntArrayRef dims, int64_t ndim) {
  std::vector<int64_t> chosen;
  if (dims.has_value()) {
    for (const int64_t dim : *dims) {
      const int64_t wrapped = at::maybe_wrap_dim(dim, ndim);
      if (ndim > 0) chosen.push_back(wrapped);
    }
  }
  if (chosen.empty()) {
    chosen.resize(static_cast<size_t>(ndim));
    std::iota(chosen.begin(), chosen.end(), int64_t{0});
  }
  return chosen;
}

namespace {

ShardLayout reduced_layout(const ShardLayout& layout, const std::vector<int64_t>& dims,
                           bool keepdim, const Placement& where_cut) {
  std::vector<bool> gone(static_cast<size_t>(layout.ndim()));
  for (const int64_t dim : dims) gone[static_cast<size_t>(dim)] = true;
  Placements placements = layout.placements();
  std::vector<DimCut> cuts;
  std::vector<int64_t> place(gone.size());
  for (size_t dim = 0; dim < gone.size(); ++dim) {
    place[dim] = static_cast<int64_t>(cuts.size());
    if (!gone[dim]) {
      cuts.push_back(layout.cuts()[dim]);
    } else if (keepdim) {
      cuts.push_back({{}, {1}});
    }
  }
  for (Placement& placement : placements) {
    if (!placement.is_shard()) continue;
    const auto dim = static_cast<size_t>(placement.dim());
    placement = gone[dim] ? where_cut : Shard(place[dim]);
  }
  return ShardLayout::with_cuts(layout.mesh_shape(), std::move(placements), std::move(cuts));
}

const char kReductionRule = 0;

}  // namespace

SpecPtr reduced_spec(const SpecPtr& spec, const std::vector<int64_t>& dims, bool keepdim,
                     const Placement& where_cut) {
  c10::SmallVector<int64_t, 12> key = {rule_number(&kReductionRule), keepdim ? 1 : 0,
                                       static_cast<int64_t>(where_cut.kind()),
                                       static_cast<int64_t>(where_cut.op()), where_cut.dim()};
  key.append(dims.begin(), dims.end());
  return derived_specs(key, {&spec}, [&] {
    return std::vector<ShardLayout>{reduced_layout(spec->layout(), dims, keepdim, where_cut)};
  })[0];
}

int64_t reduced_count(at::IntArrayRef shape, const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= shape[static_cast<size_t>(dim)];
  return count;
}

at::Tensor without_summands(const at::Tensor& tensor) {
  return redistribute(tensor, without_partial(spec_of(tensor)));
}

at::Tensor with_sums_only(const at::Tensor& tensor) {
  for (const Placement& placement : spec_of(tensor)->placements()) {
    if (placement.is_partial() && placement.op() != PartialOp::kSum) {
      return without_summands(tensor);
    }
  }
  return tensor;
}

at::Tensor stacked_along(const at::Tensor& own, const ShardMesh& mesh, int64_t axis) {
  const std::vector<int64_t> rows(static_cast<size_t>(mesh.shape()[static_cast<size_t>(axis)]), 1);
  const at::Tensor row = own.unsqueeze(0);
  if (!c10::GradMode::is_enabled() || !own.requires_grad()) {
    return all_gather_v(row.detach().contiguous(), Sizes(rows), 0, true,
                        GroupArgument(mesh.axis_group(axis)));
  }
  const auto shared = ShardMesh::Ptr::unsafe_reclaim_from_nonowning(const_cast<ShardMesh*>(&mesh));
  Placements placements(mesh.shape().size());
  placements[static_cast<size_t>(axis)] = Shard(0);
  std::vector<DimCut> cuts = {{{axis}, rows}};
  for (const int64_t extent : own.sizes()) cuts.push_back({{}, {extent}});
  const SpecPtr apart =
      make_spec(shared, ShardLayout::with_cuts(mesh.shape(), placements, std::move(cuts)));
  return to_local(
      redistribute(from_local(row, apart), replicated_spec(shared, apart->global_shape())));
}

at::Tensor on_each_rank(const at::Tensor& value, const ShardMesh::Ptr& mesh,
                        const std::vector<int64_t>& axes) {
  if (!c10::GradMode::is_enabled() || !value.requires_grad()) return value;
  const SpecPtr whole = replicated_spec(mesh, value.sizes());
  Placements summands(mesh->shape().size());
  for (const int64_t axis : axes) summands[static_cast<size_t>(axis)] = Partial();
  return to_local(from_local(value, whole),
                  make_spec(mesh, whole->layout().with_placements(summands)));
}

at::Tensor combined(at::Tensor own, const SpecPtr& spec, const std::vector<int64_t>& dims,
                    const std::function<at::Tensor(const at::Tensor&)>& reduce) {
  for (const int64_t axis : axes_that_cut(*spec, dims)) {
    own = reduce(stacked_along(own, *spec->mesh(), axis));
  }
  return own;
}

at::Tensor dropped(const at::Tensor& tensor, const std::vector<int64_t>& dims, bool keepdim) {
  return keepdim || dims.empty() ? tensor : tensor.squeeze(dims);
}

}  // namespace meshrun
