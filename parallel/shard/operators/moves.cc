// The same elements in other places, or several times.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/WrapDimUtilsMulti.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/diag_embed.h"
#include "ATen/ops/flip.h"
#include "ATen/ops/repeat_interleave.h"
#include "ATen/ops/roll.h"
#include "ATen/ops/tril.h"
#include "ATen/ops/triu.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/row_exchange.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

// Rows of one cut dimension moved, cut as before.
at::Tensor with_rows(const at::Tensor& local, const SpecPtr& spec, int64_t dim,
                     const Lengths& rows) {
  const DimCut& cut = spec->layout().cuts()[static_cast<size_t>(dim)];
  return exchange_rows(local, spec->mesh(), dim, cut, rows, cut);
}

at::Tensor flip(const at::Tensor& self, at::IntArrayRef dims) {
  const SpecPtr& spec = spec_of(self);
  const auto chosen = at::dim_list_to_bitset(dims, self.dim());
  Lengths whole;
  at::Tensor local = to_local(self);
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!chosen[static_cast<size_t>(dim)]) continue;
    if (!spec->is_sharded(dim)) {
      whole.push_back(dim);
      continue;
    }
    Lengths rows(static_cast<size_t>(self.size(dim)));
    std::iota(rows.rbegin(), rows.rend(), int64_t{0});
    local = with_rows(local, spec, dim, rows);
  }
  return from_local(at::flip(local, whole), spec);
}

at::Tensor roll(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  if (dims.empty() && shifts.size() == 1) {
    return at::roll(self.flatten(), shifts, 0).reshape(self.sizes());
  }
  TORCH_CHECK(shifts.size() == dims.size(),
              "shifts and dimensions must align. shifts: ", shifts.size(), ", dims:", dims.size());
  const SpecPtr& spec = spec_of(self);
  at::Tensor local = to_local(self);
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = at::maybe_wrap_dim(dims[i], self.dim());
    if (!spec->is_sharded(dim)) {
      local = at::roll(local, shifts[i], dim);
      continue;
    }
    const int64_t extent = self.size(dim);
    if (extent == 0) continue;
    Lengths rows(static_cast<size_t>(extent));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    const int64_t first = ((-shifts[i]) % extent + extent) % extent;
    std::rotate(rows.begin(), rows.begin() + first, rows.end());
    local = with_rows(local, spec, dim, rows);
  }
  return from_local(local, spec);
}

at::Tensor repeat(const at::Tensor& self, at::IntArrayRef repeats) {
  const auto added = static_cast<int64_t>(repeats.size()) - self.dim();
  TORCH_CHECK(added >= 0,
              "Number of dimensions of repeat dims can not be smaller than number of "
              "dimensions of tensor");
  for (const int64_t count : repeats) {
    TORCH_CHECK(count >= 0, "repeats can not be negative: ", repeats);
  }
  const SpecPtr& spec = spec_of(self);
  const ShardMesh::Ptr& mesh = spec->mesh();
  LayoutDraft draft(mesh->shape(), [&] {
    Lengths shape(repeats.begin(), repeats.end());
    for (int64_t dim = 0; dim < self.dim(); ++dim) {
      shape[static_cast<size_t>(dim + added)] *= self.size(dim);
    }
    return shape;
  }());
  for (int64_t axis = 0; axis < mesh->ndim(); ++axis) {
    const Placement& placement = spec->placements()[static_cast<size_t>(axis)];
    if (placement.is_partial()) draft.set(axis, placement);
  }
  at::Tensor local = to_local(self);
  Lengths own(repeats.begin(), repeats.end());
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    const DimCut& cut = spec->layout().cuts()[static_cast<size_t>(dim)];
    if (cut.axes.empty()) continue;
    int64_t& count = own[static_cast<size_t>(dim + added)];
    DimCut to = cut;
    if (count != 1) {
      Lengths rows;
      for (int64_t i = 0; i < count * self.size(dim); ++i) rows.push_back(i % self.size(dim));
      to = even_cut(mesh->shape(), cut.axes, static_cast<int64_t>(rows.size()));
      local = exchange_rows(local, mesh, dim, cut, rows, to);
      count = 1;
    }
    draft.cut(dim + added, to);
  }
  return from_local(local.repeat(own), make_spec(mesh, draft.layout()));
}

at::Tensor repeat_interleave(const at::Tensor& self, int64_t repeats, std::optional<int64_t> dim,
                             std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats >= 0, "Repeats must be non-negative");
  if (!dim) return at::repeat_interleave(self.flatten(), repeats, 0, output_size);
  const int64_t along = at::maybe_wrap_dim(*dim, self.dim());
  const SpecPtr& spec = spec_of(self);
  std::vector<DimCut> cuts = spec->layout().cuts();
  for (int64_t& size : cuts[static_cast<size_t>(along)].sizes) size *= repeats;
  return from_local(
      at::repeat_interleave(to_local(self), repeats, along),
      make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(), spec->placements(),
                                                     std::move(cuts))));
}

at::Tensor diag_embed(const at::Tensor& self, int64_t offset, int64_t dim1, int64_t dim2) {
  const int64_t ndim = self.dim() + 1;
  dim1 = at::maybe_wrap_dim(dim1, ndim);
  dim2 = at::maybe_wrap_dim(dim2, ndim);
  const at::Tensor input = redistribute(self, with_whole_dims(spec_of(self), {self.dim() - 1}));
  const SpecPtr& spec = spec_of(input);
  const at::Tensor local = at::diag_embed(to_local(input), offset, dim1, dim2);
  Lengths shape = local.sizes().vec();
  Lengths others;
  for (int64_t dim = 0; dim < ndim; ++dim) {
    if (dim == dim1 || dim == dim2) continue;
    shape[static_cast<size_t>(dim)] = self.size(static_cast<int64_t>(others.size()));
    others.push_back(dim);
  }
  LayoutDraft draft(spec->mesh()->shape(), shape);
  for (size_t dim = 0; dim < others.size(); ++dim) {
    draft.cut(others[dim], spec->layout().cuts()[dim]);
  }
  return from_local(local, make_spec(spec->mesh(), draft.layout()));
}

int64_t local_diagonal(const at::Tensor& self, int64_t diagonal) {
  const std::vector<int64_t>& offsets = spec_of(self)->box().offsets;
  return diagonal + offsets[offsets.size() - 2] - offsets[offsets.size() - 1];
}

template <auto Triangle>
at::Tensor triangle(const at::Tensor& self, int64_t diagonal) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(self.dim() >= 2, "a triangle of a tensor needs at least 2 dimensions");
  return wrap(Triangle(local_of(self), local_diagonal(self, diagonal)), spec_of(self));
}

template <auto Triangle>
at::Tensor& triangle_(at::Tensor& self, int64_t diagonal) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(self.dim() >= 2, "a triangle of a tensor needs at least 2 dimensions");
  const at::Tensor& local = local_of(self);
  local.copy_(Triangle(local, local_diagonal(self, diagonal)));
  return self;
}

using Triangular = at::Tensor (*)(const at::Tensor&, int64_t);
constexpr Triangular kTril = [](const at::Tensor& t, int64_t d) { return at::tril(t, d); };
constexpr Triangular kTriu = [](const at::Tensor& t, int64_t d) { return at::triu(t, d); };

const Movement kRows = {"any with those dimensions whole",
                        "along a cut dimension each row once to each rank that gets it",
                        "the same rows back"};
const Movement kLocal = {"any", "nothing", "nothing"};

const bool kRegistered =
    OperatorFamily("joining")
        .above_autograd("aten::flip", &flip, kRows)
        .above_autograd("aten::roll", &roll, kRows)
        .above_autograd("aten::repeat", &repeat, kRows)
        .above_autograd("aten::repeat_interleave.self_int", &repeat_interleave, kLocal)
        .above_autograd("aten::diag_embed", &diag_embed,
                        {"any Shard with the last dimension whole",
                         "a Partial is reduced, a cut "
                         "last dimension is gathered",
                         "the same way back"})
        .below_autograd("aten::tril", &triangle<kTril>, kLocal)
        .below_autograd("aten::triu", &triangle<kTriu>, kLocal)
        .below_autograd("aten::tril_", &triangle_<kTril>, kLocal)
        .below_autograd("aten::triu_", &triangle_<kTriu>, kLocal)
        .registered();

}  // namespace
}  // namespace meshrun
