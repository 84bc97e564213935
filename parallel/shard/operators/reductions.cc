// Reductions: a rank reduces its part, and what is left to add between ranks is a Partial.
#include <numeric>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/ops/sum.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"

namespace meshrun {
namespace {

using OptionalDims = at::OptionalIntArrayRef;

std::vector<int64_t> all_or(OptionalDims dims, int64_t ndim) {
  std::vector<int64_t> chosen;
  if (dims.has_value() && !dims->empty()) {
    for (const int64_t dim : *dims) chosen.push_back(at::maybe_wrap_dim(dim, ndim));
  } else {
    chosen.resize(static_cast<size_t>(ndim));
    std::iota(chosen.begin(), chosen.end(), int64_t{0});
  }
  return chosen;
}

// The layout of a reduction over `dims`: the axes that cut one of them hold summands.
SpecPtr reduced_spec(const SpecPtr& spec, const std::vector<int64_t>& dims, bool keepdim) {
  const ShardLayout& layout = spec->layout();
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
    placement = gone[dim] ? Partial() : Shard(place[dim]);
  }
  return make_spec(spec->mesh(), ShardLayout::with_cuts(layout.mesh_shape(), std::move(placements),
                                                        std::move(cuts)));
}

// Sums and averages of summands may be added up; others are reduced first.
at::Tensor with_sums_only(const at::Tensor& tensor) {
  for (const Placement& placement : spec_of(tensor)->placements()) {
    if (placement.is_partial() && placement.op() != PartialOp::kSum) {
      return redistribute(tensor, without_partial(spec_of(tensor)));
    }
  }
  return tensor;
}

at::Tensor sum_dims(const at::Tensor& self, OptionalDims dim, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  const at::Tensor input = with_sums_only(self);
  const SpecPtr& spec = spec_of(input);
  const std::vector<int64_t> dims = all_or(dim, input.dim());
  return from_local(at::sum(to_local(input), dims, keepdim, dtype),
                    reduced_spec(spec, dims, keepdim));
}

at::Tensor sum_all(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return sum_dims(self, {}, false, dtype);
}

const Movement kSum = {"any Shard, Replicate, Partial(sum)",
                       "nothing: axes that cut a summed dimension become Partial(sum)", "nothing"};

const bool kRegistered = OperatorFamily("reductions")
                             .above_autograd("aten::sum", &sum_all, kSum)
                             .above_autograd("aten::sum.dim_IntList", &sum_dims, kSum)
                             .registered();

}  // namespace
}  // namespace meshrun
