// Operators along the order of one dimension: scans and sorts. A dimension that is cut is made
// whole first, by cutting another one that is large enough, else by a gather. cumsum alone stays
// where it is: the sums of the ranks before travel.
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cummax.h"
#include "ATen/ops/cummin.h"
#include "ATen/ops/cumprod.h"
#include "ATen/ops/cumsum.h"
#include "ATen/ops/kthvalue.h"
#include "ATen/ops/logcumsumexp.h"
#include "ATen/ops/median.h"
#include "ATen/ops/nanmedian.h"
#include "ATen/ops/sort.h"
#include "ATen/ops/topk.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/layout/view_layout.h"

namespace meshrun {
namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;
using Dtype = std::optional<at::ScalarType>;

// `dim` whole, no Partial.
at::Tensor with_whole_dim(const at::Tensor& self, int64_t dim) {
  const SpecPtr spec = without_partial(spec_of(self));
  const ShardLayout& layout = spec->layout();
  const DimCut& cut = layout.cuts()[static_cast<size_t>(dim)];
  if (cut.axes.empty()) return redistribute(self, spec);
  LayoutDraft draft(layout);
  draft.make_whole(dim, self.size(dim));
  int64_t other = -1;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d == dim || draft.is_cut(d)) continue;
    if (other < 0 || self.size(d) > self.size(other)) other = d;
  }
  if (other >= 0 && self.size(other) >= static_cast<int64_t>(cut.sizes.size())) {
    draft.cut(other, even_cut(layout.mesh_shape(), cut.axes, self.size(other)));
  }
  return redistribute(self, make_spec(spec->mesh(), draft.layout()));
}

at::Tensor along(const at::Tensor& self, int64_t dim,
                 const std::function<at::Tensor(const at::Tensor&)>& call) {
  if (self.dim() == 0) {
    const at::Tensor input = redistribute(self, without_partial(spec_of(self)));
    return from_local(call(to_local(input)), spec_of(input));
  }
  const at::Tensor input = with_whole_dim(self, at::maybe_wrap_dim(dim, self.dim()));
  return from_local(call(to_local(input)), spec_of(input));
}

// `extent`: of `dim` in the results; -1: as it was; -2: without it.
constexpr int64_t kAsIs = -1;
constexpr int64_t kGone = -2;

Pair pair_along(const at::Tensor& self, int64_t dim, int64_t extent,
                const std::function<Pair(const at::Tensor&)>& call) {
  at::Tensor input = self;
  SpecPtr spec;
  if (self.dim() == 0) {
    input = redistribute(self, without_partial(spec_of(self)));
    spec = spec_of(input);
  } else {
    dim = at::maybe_wrap_dim(dim, self.dim());
    input = with_whole_dim(self, dim);
    spec = spec_of(input);
    if (extent == kGone) {
      spec = make_spec(spec->mesh(), selected(spec->layout(), dim, 0));
    } else if (extent != kAsIs) {
      spec = make_spec(spec->mesh(), with_extent(spec->layout(), dim, extent));
    }
  }
  const auto [values, indices] = call(to_local(input));
  return {from_local(values, spec), from_local(indices, spec)};
}

Pair sort(const at::Tensor& self, int64_t dim, bool descending) {
  return pair_along(self, dim, kAsIs,
                    [=](const at::Tensor& x) { return at::sort(x, dim, descending); });
}

Pair sort_stable(const at::Tensor& self, std::optional<bool> stable, int64_t dim, bool descending) {
  return pair_along(self, dim, kAsIs,
                    [=](const at::Tensor& x) { return at::sort(x, stable, dim, descending); });
}

Pair topk(const at::Tensor& self, int64_t k, int64_t dim, bool largest, bool sorted) {
  const int64_t extent = self.dim() == 0 ? 1 : self.size(dim);
  TORCH_CHECK(k >= 0 && k <= extent, "topk: k = ", k, " of ", extent, " elements");
  return pair_along(self, dim, k,
                    [=](const at::Tensor& x) { return at::topk(x, k, dim, largest, sorted); });
}

Pair kthvalue(const at::Tensor& self, int64_t k, int64_t dim, bool keepdim) {
  return pair_along(self, dim, keepdim ? 1 : kGone,
                    [=](const at::Tensor& x) { return at::kthvalue(x, k, dim, keepdim); });
}

Pair median(const at::Tensor& self, int64_t dim, bool keepdim) {
  return pair_along(self, dim, keepdim ? 1 : kGone,
                    [=](const at::Tensor& x) { return at::median(x, dim, keepdim); });
}

Pair nanmedian(const at::Tensor& self, int64_t dim, bool keepdim) {
  return pair_along(self, dim, keepdim ? 1 : kGone,
                    [=](const at::Tensor& x) { return at::nanmedian(x, dim, keepdim); });
}

Pair cummax(const at::Tensor& self, int64_t dim) {
  return pair_along(self, dim, kAsIs, [=](const at::Tensor& x) { return at::cummax(x, dim); });
}

Pair cummin(const at::Tensor& self, int64_t dim) {
  return pair_along(self, dim, kAsIs, [=](const at::Tensor& x) { return at::cummin(x, dim); });
}

at::Tensor cumprod(const at::Tensor& self, int64_t dim, Dtype dtype) {
  return along(self, dim, [=](const at::Tensor& x) { return at::cumprod(x, dim, dtype); });
}

at::Tensor logcumsumexp(const at::Tensor& self, int64_t dim) {
  return along(self, dim, [=](const at::Tensor& x) { return at::logcumsumexp(x, dim); });
}

at::Tensor cumsum(const at::Tensor& self, int64_t dim, Dtype dtype) {
  const at::Tensor input = redistribute(self, without_partial(spec_of(self)));
  const SpecPtr& spec = spec_of(input);
  const at::Tensor local = to_local(input);
  const at::Tensor sums = at::cumsum(local, dim, dtype);
  if (self.dim() == 0) return from_local(sums, spec);
  dim = at::maybe_wrap_dim(dim, self.dim());
  const DimCut& cut = spec->layout().cuts()[static_cast<size_t>(dim)];
  if (cut.axes.empty()) return from_local(sums, spec);
  // One row of each rank: its total. Every rank needs those before it.
  std::vector<DimCut> cuts = spec->layout().cuts();
  cuts[static_cast<size_t>(dim)].sizes.assign(cut.sizes.size(), 1);
  const SpecPtr totals_spec =
      make_spec(spec->mesh(),
                ShardLayout::with_cuts(spec->mesh()->shape(), spec->placements(), std::move(cuts)));
  LayoutDraft whole(totals_spec->layout());
  whole.make_whole(dim, static_cast<int64_t>(cut.sizes.size()));
  const SpecPtr whole_spec = make_spec(spec->mesh(), whole.layout());
  const at::Tensor totals =
      redistribute(from_local(local.sum(dim, true, sums.scalar_type()), totals_spec), whole_spec);
  const int64_t piece = spec->layout().piece(dim, spec->mesh()->coordinate());
  const at::Tensor before = to_local(totals, partial_where_replicated(whole_spec, spec))
                                .narrow(dim, 0, piece)
                                .sum(dim, true);
  return from_local(sums + before, spec);
}

at::Tensor& cumsum_(at::Tensor& self, int64_t dim, Dtype dtype) {
  return self.copy_(meshrun::cumsum(self, dim, dtype));
}
at::Tensor& cumprod_(at::Tensor& self, int64_t dim, Dtype dtype) {
  // The derivative reads what is written over.
  const bool is_recorded = c10::GradMode::is_enabled() && self.requires_grad();
  return self.copy_(meshrun::cumprod(is_recorded ? self.clone() : self, dim, dtype));
}

const Movement kOrdered = {"any with that dimension whole",
                           "a Partial is reduced; a cut dimension is made whole: its axes cut the "
                           "largest other one, or it is gathered",
                           "the same way back"};
const Movement kCumsum = {"any Shard, Replicate",
                          "a Partial is reduced; along a cut dimension one "
                          "row of every rank",
                          "the same way back"};

const bool kRegistered = OperatorFamily("indexing")
                             .above_autograd("aten::sort", &sort, kOrdered)
                             .above_autograd("aten::sort.stable", &sort_stable, kOrdered)
                             .above_autograd("aten::topk", &topk, kOrdered)
                             .above_autograd("aten::kthvalue", &kthvalue, kOrdered)
                             .above_autograd("aten::median.dim", &median, kOrdered)
                             .above_autograd("aten::nanmedian.dim", &nanmedian, kOrdered)
                             .above_autograd("aten::cummax", &cummax, kOrdered)
                             .above_autograd("aten::cummin", &cummin, kOrdered)
                             .above_autograd("aten::cumprod", &cumprod, kOrdered)
                             .above_autograd("aten::cumprod_", &cumprod_, kOrdered)
                             .above_autograd("aten::logcumsumexp", &logcumsumexp, kOrdered)
                             .above_autograd("aten::cumsum", &cumsum, kCumsum)
                             .above_autograd("aten::cumsum_", &cumsum_, kCumsum)
                             .registered();

}  // namespace
}  // namespace meshrun
