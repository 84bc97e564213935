#include "parallel/shard/operators/aligned.h"

#include <algorithm>
#include <utility>

#include "parallel/collectives/all_reduce.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/broadcast.h"

namespace meshrun {

Aligned align(const char* operation, std::initializer_list<const at::Tensor*> operands) {
  const ShardMesh::Ptr mesh = mesh_of(operands, operation);
  std::vector<at::Tensor> promoted;
  std::vector<Operand> described;
  for (const at::Tensor* operand : operands) {
    if (!operand->defined()) continue;
    promoted.push_back(promote(*operand, mesh));
    described.push_back({&spec_of(promoted.back())->layout(), operand->sizes().vec()});
  }
  const BroadcastLayout layout =
      with_shard_errors([&] { return broadcast(mesh->shape(), described, Linearity::kNone); });
  Aligned aligned{make_spec(mesh, layout.result), {}};
  size_t next = 0;
  for (const at::Tensor* operand : operands) {
    if (!operand->defined()) {
      aligned.locals.emplace_back();
      continue;
    }
    const SpecPtr spec = make_spec(mesh, layout.operands[next]);
    aligned.locals.push_back(
        to_local(redistribute(promoted[next], spec), partial_where_replicated(spec, aligned.spec)));
    ++next;
  }
  return aligned;
}

SpecPtr sum_spec(const SpecPtr& spec) {
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard()) placement = Partial();
  }
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(), placements, {}));
}

void all_reduce_over(const SpecPtr& spec, const std::vector<int64_t>& dims,
                     const at::Tensor& tensor, PartialOp op) {
  const auto how = op == PartialOp::kMax ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  for (int64_t axis = 0; axis < spec->mesh()->ndim(); ++axis) {
    const Placement& placement = spec->placements()[static_cast<size_t>(axis)];
    if (!placement.is_shard() ||
        std::find(dims.begin(), dims.end(), placement.dim()) == dims.end()) {
      continue;
    }
    detail::all_reduce(spec->mesh()->axis_group(axis), tensor, how).wait();
  }
}

SpecPtr drop_dim(const SpecPtr& spec, int64_t dim) {
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard() && placement.dim() > dim) placement = Shard(placement.dim() - 1);
  }
  std::vector<DimCut> cuts = spec->layout().cuts();
  cuts.erase(cuts.begin() + dim);
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                        std::move(placements), std::move(cuts)));
}

SpecPtr insert_dim(const SpecPtr& spec, int64_t dim, int64_t extent) {
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard() && placement.dim() >= dim) placement = Shard(placement.dim() + 1);
  }
  std::vector<DimCut> cuts = spec->layout().cuts();
  cuts.insert(cuts.begin() + dim, DimCut{{}, {extent}});
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                        std::move(placements), std::move(cuts)));
}

}  // namespace meshrun
