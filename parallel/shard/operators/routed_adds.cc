#include "parallel/shard/operators/routed_adds.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/index_add.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/row_exchange.h"

namespace meshrun {
namespace {

// Layouts of the written tensor and of the source that such an addition works with.
struct Cuts {
  SpecPtr target;
  SpecPtr source;
};

std::optional<Cuts> alike(const at::Tensor& self, int64_t dim, const at::Tensor& source) {
  if (!is_shard_tensor(self) || !is_shard_tensor(source) || self.dim() == 0 ||
      self.dim() != source.dim()) {
    return std::nullopt;
  }
  Cuts cuts{without_partial(spec_of(self)), without_partial(spec_of(source))};
  for (int64_t d = 0; d < self.dim(); ++d) {
    const DimCut& own = cuts.target->layout().cuts()[static_cast<size_t>(d)];
    const DimCut& other = cuts.source->layout().cuts()[static_cast<size_t>(d)];
    const bool fits = d == dim ? !own.axes.empty() && own.axes == other.axes : own == other;
    if (!fits) return std::nullopt;
  }
  return cuts;
}

// Refuses indices out of range.
at::Tensor checked(const at::Tensor& index, int64_t extent) {
  const at::Tensor rows = index.to(at::kLong);
  lookup(rows, {0, extent, extent}, false);
  return rows;
}

}  // namespace

std::optional<at::Tensor> routed_index_reduce(const at::Tensor& self, int64_t dim,
                                              const at::Tensor& index, const at::Tensor& source,
                                              const RowReduction& call) {
  const auto cuts = alike(self, dim, source);
  if (!cuts || index.dim() != 1) return std::nullopt;
  const ShardMesh::Ptr mesh = mesh_of({&self, &index, &source}, "index_add");
  const auto d = static_cast<size_t>(dim);
  const DimCut& rows_cut = cuts->source->layout().cuts()[d];
  Placements placements(mesh->shape().size());
  for (const int64_t axis : rows_cut.axes) placements[static_cast<size_t>(axis)] = Shard(0);
  const SpecPtr vector =
      make_spec(mesh, ShardLayout::with_cuts(mesh->shape(), std::move(placements), {rows_cut}));
  const at::Tensor rows =
      checked(local_of(redistribute(promote(index, mesh), vector)), self.size(dim));
  const at::Tensor values = to_local(redistribute(source, cuts->source));
  const RowRoute route(rows, mesh, cuts->target->layout().cuts()[d]);
  const at::Tensor own_rows = route.send(rows, 0) - cuts->target->box().offsets[d];
  const at::Tensor arrived = route.send(values, dim);
  return from_local(call(to_local(redistribute(self, cuts->target)), own_rows, arrived),
                    cuts->target);
}

std::optional<at::Tensor> routed_index_add(const at::Tensor& self, int64_t dim,
                                           const at::Tensor& index, const at::Tensor& source) {
  return routed_index_reduce(
      self, dim, index, source,
      [dim](const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values) {
        return at::index_add(to, dim, rows, values);
      });
}

std::optional<at::Tensor> routed_scatter_add(const at::Tensor& self, int64_t dim,
                                             const at::Tensor& index, const at::Tensor& source) {
  const auto cuts = alike(self, dim, source);
  if (!cuts || index.sizes() != source.sizes()) return std::nullopt;
  const ShardMesh::Ptr mesh = mesh_of({&self, &index, &source}, "scatter_add");
  const auto d = static_cast<size_t>(dim);
  const at::Tensor values = to_local(redistribute(source, cuts->source)).movedim(dim, 0);
  const at::Tensor index_part = local_of(redistribute(promote(index, mesh), cuts->source));
  const at::Tensor rows = checked(index_part.movedim(dim, 0).reshape({-1}), self.size(dim));
  const RowRoute route(rows, mesh, cuts->target->layout().cuts()[d]);

  // Elements of a row of the target, here as on the other ranks: all else is cut alike.
  const at::Tensor target = to_local(redistribute(self, cuts->target)).movedim(dim, 0);
  const int64_t width = c10::multiply_integers(target.sizes().slice(1));
  const at::Tensor column =
      at::arange(rows.numel(), rows.options()).remainder(std::max<int64_t>(width, 1));
  const at::Tensor places =
      (route.send(rows, 0) - cuts->target->box().offsets[d]) * width + route.send(column, 0);
  const at::Tensor added =
      at::index_add(target.reshape({-1}), 0, places, route.send(values.reshape({-1}), 0));
  return from_local(added.reshape(target.sizes()).movedim(0, dim), cuts->target);
}

}  // namespace meshrun
