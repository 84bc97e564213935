// How often values, or values of a range, occur. Ranks agree on the bins, count their own part, and
// the counts are Partial.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/amax.h"
#include "ATen/ops/bincount.h"
#include "ATen/ops/full.h"
#include "ATen/ops/histc.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/operands.h"
#include "parallel/shard/operators/reduced.h"

namespace meshrun {
namespace {

using at::Tensor;

// Counts of `bins` by ranks with parts of a tensor of that layout.
SpecPtr counts_spec(const SpecPtr& spec, int64_t bins) {
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard()) placement = Partial();
  }
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                        std::move(placements), {{{}, {bins}}}));
}

// The smallest and the largest value of all ranks.
std::pair<int64_t, int64_t> agreed_range(const Tensor& local, const SpecPtr& spec) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
  const Tensor range = at::full({2}, kNone, local.options().dtype(at::kLong));
  if (local.numel() > 0) {
    range[0].copy_(local.min().to(at::kLong).neg());
    range[1].copy_(local.max());
  }
  all_reduce_over(spec, {0}, range, PartialOp::kMax);
  const Tensor on_host = range.cpu();
  const auto* numbers = on_host.const_data_ptr<int64_t>();
  return {-numbers[0], numbers[1]};
}

Tensor bincount(const Tensor& self, const std::optional<Tensor>& given, int64_t minlength) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor weights = given.value_or(Tensor());
  const ShardMesh::Ptr mesh = mesh_of({&self, &weights}, "bincount");
  TORCH_CHECK(self.dim() == 1, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  TORCH_CHECK(!weights.defined() || weights.sizes() == self.sizes(),
              "weights should be 1-d and have the same length as input");
  TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(self.scalar_type(), /*includeBool=*/false),
                              "bincount of ", self.scalar_type());
  if (self.numel() == 0) {
    return wrap(at::zeros({minlength}, self.options().dtype(at::kLong)),
                replicated_spec(mesh, {minlength}));
  }
  LayoutDraft draft(without_partial(spec_on(self, mesh))->layout());
  if (weights.defined()) {
    const SpecPtr theirs = spec_on(weights, mesh);
    const DimCut& own = theirs->layout().cuts()[0];
    if (draft.may_cut(0, own)) draft.cut(0, own);
  }
  const SpecPtr spec = make_spec(mesh, draft.layout());
  const Tensor local = local_as(self, spec);
  std::optional<Tensor> own_weights;
  if (weights.defined()) own_weights = local_as(weights, spec);
  const auto [least, most] = agreed_range(local, spec);
  TORCH_CHECK(least >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const int64_t bins = std::max(most + 1, minlength);
  if (local.numel() > 0) {
    return wrap(at::bincount(local, own_weights, bins), counts_spec(spec, bins));
  }
  const at::ScalarType type = !weights.defined()                    ? at::kLong
                              : weights.scalar_type() == at::kFloat ? at::kFloat
                                                                    : at::kDouble;
  return wrap(at::zeros({bins}, local.options().dtype(type)), counts_spec(spec, bins));
}

Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = without_partial(spec_of(self));
  const Tensor local = local_as(self, spec);
  double low = min.toDouble();
  double high = max.toDouble();
  if (spec->is_replicated() || low != high || self.numel() == 0) {
    return wrap(at::histc(local, bins, min, max), counts_spec(spec, bins));
  }
  // LibTorch's errors of the type and of the number of bins, on all ranks.
  at::histc(at::zeros({1}, local.options()), bins, 0, 1);
  Tensor range =
      at::full({2}, -std::numeric_limits<double>::infinity(), local.options().dtype(at::kDouble));
  if (local.numel() > 0) range = at::stack({-local.min(), local.max()}).to(at::kDouble);
  range = combined(range, spec, reduced_dims({}, self.dim()), [](const Tensor& all) {
            return at::amax(all, 0);
          }).cpu();
  low = -range[0].item<double>();
  high = range[1].item<double>();
  if (low == high) {
    low -= 1;
    high += 1;
  }
  return wrap(at::histc(local, bins, low, high), counts_spec(spec, bins));
}

const Movement kHistogram = {"any Shard, Replicate",
                             "a Partial is reduced; where the range is that of the values, one "
                             "pair of numbers of each rank: "
                             "the counts are Partial(sum)",
                             ""};

const bool kRegistered =
    OperatorFamily("counting")
        .below_autograd("aten::bincount", &bincount,
                        {"any Shard, Replicate, with the weights cut alike",
                         "a Partial is reduced, weights move to the values' layout; the smallest "
                         "and the largest value are all-reduced: the counts are Partial(sum)",
                         ""})
        .below_autograd("aten::histc", &histc, kHistogram)
        .below_autograd("aten::histc.out", &Into<&histc>::call, kHistogram)
        .registered();

}  // namespace
}  // namespace meshrun
