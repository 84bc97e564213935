// Places of values in sorted sequences, and membership in sets. Values keep their layout. A
// sequence or a set that is cut, and larger than the values, stays where it is: each rank searches
// its piece.
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "ATen/ScalarOps.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/native/TypeProperties.h"
#include "ATen/ops/amax.h"
#include "ATen/ops/amin.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/isin.h"
#include "ATen/ops/searchsorted.h"
#include "ATen/ops/where.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/moments.h"
#include "parallel/shard/operators/operands.h"
#include "parallel/shard/operators/product.h"
#include "parallel/shard/operators/reduced.h"

namespace meshrun {
namespace {

using at::Tensor;
using Side = std::optional<c10::string_view>;

// Whether LibTorch searches and sorts such elements, on every device.
bool is_searchable(at::ScalarType type) {
  switch (type) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return true;
    default:
      return false;
  }
}

bool are_searchable(const Tensor& values, const Tensor& searched) {
  return is_searchable(values.scalar_type()) && is_searchable(searched.scalar_type());
}

// Makes the values whole along the axes of `cut`.
void free_axes(LayoutDraft& values, at::IntArrayRef shape, const DimCut& cut) {
  for (const int64_t axis : cut.axes) {
    const Placement placement = values.placement(axis);
    if (!placement.is_shard()) continue;
    values.make_whole(placement.dim(), shape[static_cast<size_t>(placement.dim())]);
  }
}

// LibTorch's errors, a sorter's values and dtypes aside.
void check_search(const Tensor& sequence, const Tensor& values, bool out_int32, bool right,
                  Side side, const Tensor& sorter) {
  TORCH_CHECK(!side || *side == "left" || *side == "right",
              "torch.searchsorted(): side can only be 'left' or 'right' but got ",
              side.value_or(""));
  TORCH_CHECK(!side || !right || *side == "right",
              "torch.searchsorted(): side and right can't be set to opposites, got side of ",
              side.value_or(""), " while right was True");
  TORCH_CHECK(sequence.device() == values.device(),
              "torch.searchsorted(): boundaries and input value tensors should have same device "
              "type, but got ",
              sequence.device(), " and ", values.device());
  if (sorter.defined()) {
    TORCH_CHECK(sorter.device() == sequence.device(),
                "torch.searchsorted(): sorter and boundary tensors should have same device type, "
                "but got ",
                sorter.device(), " and ", sequence.device());
    TORCH_CHECK(sorter.sizes() == sequence.sizes(),
                "torch.searchsorted(): boundary and sorter must have the same size, but got ",
                sequence.sizes(), " and ", sorter.sizes());
    TORCH_CHECK(sorter.scalar_type() == at::kLong,
                "torch.searchsorted(): sorter must be a tensor of long dtype but got dtype ",
                sorter.scalar_type());
  }
  TORCH_CHECK(values.dim() > 0 || sequence.dim() == 1,
              "torch.searchsorted(): input value can be a scalar only when boundaries tensor "
              "dimension is 1, but it is ",
              sequence.dim());
  TORCH_CHECK(sequence.dim() > 0,
              "torch.searchsorted(): boundaries tensor should have positive dimension, but got 0 "
              "dimension");
  const auto batch = static_cast<size_t>(sequence.dim() - 1);
  TORCH_CHECK(batch == 0 || (sequence.dim() == values.dim() &&
                             sequence.sizes().slice(0, batch) == values.sizes().slice(0, batch)),
              "torch.searchsorted(): boundaries tensor should be 1 dimension or the first N-1 "
              "dimensions of boundaries tensor and input value tensor must match, but we got ",
              sequence.sizes(), " and ", values.sizes());
  TORCH_CHECK(!out_int32 || sequence.size(-1) < std::numeric_limits<int>::max(),
              "torch.searchsorted(): the size of boundaries' last dimension should be less than ",
              std::numeric_limits<int>::max(), ", but we got ", sequence.size(-1));
}

// Whether this holds on no rank that has a part of `dims`.
bool holds_nowhere(const Tensor& holds, const SpecPtr& spec, const std::vector<int64_t>& dims) {
  const Tensor count = holds.any().to(at::kLong).reshape({1});
  return sum_over(count, *spec->mesh(), axes_that_cut(*spec, dims)).item<int64_t>() == 0;
}

// LibTorch's error on all ranks.
void check_sorter(const Tensor& sorter, const ShardMesh::Ptr& mesh) {
  if (!sorter.defined() || sorter.numel() == 0) return;
  const SpecPtr spec = without_partial(spec_on(sorter, mesh));
  const Tensor local = local_as(sorter, spec);
  const Tensor is_wrong = local.lt(0).logical_or(local.ge(sorter.size(-1)));
  TORCH_CHECK(holds_nowhere(is_wrong, spec, reduced_dims({}, sorter.dim())),
              "torch.searchsorted(): sorter index out of range");
}

// Whether every row of a sequence that is cut along its last dimension ascends, without NaN: places
// in its pieces add up to places in it then, and no otherwise. Ranks compare the pieces' ends.
bool ascends(const Tensor& local, const SpecPtr& spec) {
  const int64_t last = local.dim() - 1;
  const int64_t count = local.size(last);
  const auto is_not_below = [last](const Tensor& row, int64_t elements) {
    return row.narrow(last, 1, elements - 1).ge(row.narrow(last, 0, elements - 1));
  };
  Tensor ends = local;
  if (count > 0) {
    // Those of a piece that does not ascend itself are such that they do not either.
    const Tensor ascending = is_not_below(local, count).all(last, /*keepdim=*/true);
    ends = at::cat(
        {at::where(ascending, local.narrow(last, 0, 1), at::amax(local, {last}, true)),
         at::where(ascending, local.narrow(last, count - 1, 1), at::amin(local, {last}, true))},
        last);
  }
  std::vector<DimCut> cuts = spec->layout().cuts();
  for (int64_t& size : cuts[static_cast<size_t>(last)].sizes) size = size > 0 ? 2 : 0;
  const SpecPtr apart = make_spec(
      spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(), spec->placements(), cuts));
  const Tensor all = redistribute_local(ends, apart, with_whole_dims(apart, {last}));
  // Ranks with other rows must decide alike.
  std::vector<int64_t> batch(static_cast<size_t>(last));
  std::iota(batch.begin(), batch.end(), int64_t{0});
  return holds_nowhere(is_not_below(all, all.size(last)).logical_not(), spec, batch);
}

Tensor searchsorted(const Tensor& sequence, const Tensor& self, bool out_int32, bool right,
                    Side side, const std::optional<Tensor>& given_sorter) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Tensor sorter = given_sorter.value_or(Tensor());
  const ShardMesh::Ptr mesh = mesh_of({&sequence, &self, &sorter}, "searchsorted");
  check_search(sequence, self, out_int32, right, side, sorter);
  check_sorter(sorter, mesh);
  LayoutDraft draft(without_partial(spec_on(self, mesh))->layout());
  if (self.numel() == 0) {
    const SpecPtr none = make_spec(mesh, draft.layout());
    return wrap(
        at::empty(none->local_shape(), self.options().dtype(out_int32 ? at::kInt : at::kLong)),
        none);
  }
  if (!are_searchable(self, sequence)) {
    at::searchsorted(small_stand_in(sequence), small_stand_in(self));
  }
  const ShardLayout layout = spec_on(sequence, mesh)->layout();
  const auto last = static_cast<size_t>(sequence.dim() - 1);
  const DimCut& cut = layout.cuts()[last];
  bool in_pieces = !cut.axes.empty() && !sorter.defined() && sequence.numel() > self.numel();
  if (in_pieces) free_axes(draft, self.sizes(), cut);
  for (size_t d = 0; d < last; ++d) {
    if (draft.may_cut(static_cast<int64_t>(d), layout.cuts()[d])) {
      draft.cut(static_cast<int64_t>(d), layout.cuts()[d]);
    }
  }
  const SpecPtr spec = make_spec(mesh, draft.layout());
  LayoutDraft searched_draft(mesh->shape(), sequence.sizes().vec());
  for (size_t d = 0; d < last; ++d) {
    searched_draft.cut(static_cast<int64_t>(d), spec->layout().cuts()[d]);
  }
  if (in_pieces) searched_draft.cut(static_cast<int64_t>(last), cut);
  const SpecPtr searched = make_spec(mesh, searched_draft.layout());

  const Tensor values = local_as(self, spec);
  Tensor local = local_as(sequence, searched);
  std::optional<Tensor> local_sorter;
  if (sorter.defined()) local_sorter = local_as(sorter, searched).contiguous();
  if (in_pieces && !ascends(local, searched)) {
    in_pieces = false;
    local = redistribute_local(local, searched,
                               with_whole_dims(searched, {static_cast<int64_t>(last)}));
  }
  if (in_pieces) {
    for (const int64_t axis : cut.axes) draft.set(axis, Partial());
  }
  return wrap(at::searchsorted(local.contiguous(), values.contiguous(), out_int32,
                               side ? *side == "right" : right, std::nullopt, local_sorter),
              in_pieces ? make_spec(mesh, draft.layout()) : spec);
}

Tensor searchsorted_scalar(const Tensor& sequence, const at::Scalar& self, bool out_int32,
                           bool right, Side side, const std::optional<Tensor>& sorter) {
  return meshrun::searchsorted(sequence, at::native::wrapped_scalar_tensor(self, sequence.device()),
                               out_int32, right, side, sorter);
}

Tensor bucketize(const Tensor& self, const Tensor& boundaries, bool out_int32, bool right) {
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(",
              boundaries.dim(), ")");
  return meshrun::searchsorted(boundaries, self, out_int32, right, std::nullopt, std::nullopt);
}

Tensor bucketize_scalar(const at::Scalar& self, const Tensor& boundaries, bool out_int32,
                        bool right) {
  return meshrun::bucketize(at::native::wrapped_scalar_tensor(self, boundaries.device()),
                            boundaries, out_int32, right);
}

// The dtype in which LibTorch compares the whole tensors. For many test elements it sorts, and a
// number's dtype counts as much as theirs then: 0.1 is not among elements of float32 that are 0.1.
at::ScalarType compared_type(const Tensor& elements, const Tensor& tests) {
  if (elements.scalar_type() == tests.scalar_type()) return tests.scalar_type();
  const auto many =
      static_cast<int64_t>(10.0f * std::pow(static_cast<double>(elements.numel()), 0.145));
  if (!elements.device().is_cpu() || tests.numel() >= many) {
    return c10::promoteTypes(elements.scalar_type(), tests.scalar_type());
  }
  at::native::ResultTypeState state;
  state = at::native::update_result_type_state(elements, state);
  return at::native::result_type(at::native::update_result_type_state(tests, state));
}

Tensor isin(const Tensor& elements, const Tensor& tests, bool assume_unique, bool invert) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const ShardMesh::Ptr mesh = mesh_of({&elements, &tests}, "isin");
  if (!are_searchable(elements, tests)) at::isin(small_stand_in(elements), small_stand_in(tests));
  const at::ScalarType type = compared_type(elements, tests);
  const SpecPtr pieces = without_partial(spec_on(tests, mesh));
  LayoutDraft draft(without_partial(spec_on(elements, mesh))->layout());
  const bool in_pieces =
      !pieces->is_replicated() && elements.numel() > 0 && tests.numel() > elements.numel();
  if (in_pieces) {
    for (const DimCut& cut : pieces->layout().cuts()) free_axes(draft, elements.sizes(), cut);
  }
  const SpecPtr spec = make_spec(mesh, draft.layout());
  const Tensor local = local_as(elements, spec).to(type);
  if (!in_pieces) {
    const Tensor all = local_as(tests, replicated_spec(mesh, tests.sizes())).to(type);
    return wrap(at::isin(local, all, assume_unique, invert), spec);
  }
  const Tensor counts =
      at::isin(local, local_as(tests, pieces).to(type), assume_unique).to(at::kByte).contiguous();
  all_reduce_over(pieces, reduced_dims({}, tests.dim()), counts, PartialOp::kMax);
  return wrap(invert ? counts.eq(0) : counts.ne(0), spec);
}

Tensor isin_tensor_scalar(const Tensor& elements, const at::Scalar& test, bool assume_unique,
                          bool invert) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr spec = without_partial(spec_of(elements));
  return wrap(at::isin(local_as(elements, spec), test, assume_unique, invert), spec);
}

Tensor isin_scalar_tensor(const at::Scalar& element, const Tensor& tests, bool assume_unique,
                          bool invert) {
  return meshrun::isin(at::native::wrapped_scalar_tensor(element, tests.device()), tests,
                       assume_unique, invert);
}

const Movement kSearch = {
    "values: any Shard, Replicate; the sequence whole beside them, or cut alike but along its last "
    "dimension; cut along that one too where the values are whole and fewer",
    "a Partial is reduced; a sequence cut along its last dimension is gathered if it has no more "
    "elements than the values, or a sorter, or does not ascend; else the values become whole along "
    "these axes, two elements of each piece are all-gathered, and the places are Partial(sum)",
    ""};
const Movement kMembership = {
    "elements: any Shard, Replicate, with whole test elements",
    "a Partial is reduced; test elements that are cut are gathered if they are no more than the "
    "elements; else the elements become whole along these axes, and one byte for each is "
    "all-reduced",
    ""};

const bool kRegistered =
    OperatorFamily("searching")
        .below_autograd("aten::searchsorted.Tensor", &searchsorted, kSearch)
        .below_autograd("aten::searchsorted.Tensor_out", &IntoSameType<&searchsorted>::call,
                        kSearch)
        .below_autograd("aten::searchsorted.Scalar", &searchsorted_scalar, kSearch)
        .below_autograd("aten::searchsorted.Scalar_out", &IntoSameType<&searchsorted_scalar>::call,
                        kSearch)
        .below_autograd("aten::bucketize.Tensor", &bucketize, kSearch)
        .below_autograd("aten::bucketize.Tensor_out", &IntoSameType<&bucketize>::call, kSearch)
        .below_autograd("aten::bucketize.Scalar", &bucketize_scalar, kSearch)
        .below_autograd("aten::bucketize.Scalar_out", &IntoSameType<&bucketize_scalar>::call,
                        kSearch)
        .below_autograd("aten::isin.Tensor_Tensor", &isin, kMembership)
        .below_autograd("aten::isin.Tensor_Tensor_out", &IntoSameType<&isin>::call, kMembership)
        .below_autograd("aten::isin.Tensor_Scalar", &isin_tensor_scalar, kMembership)
        .below_autograd("aten::isin.Tensor_Scalar_out", &IntoSameType<&isin_tensor_scalar>::call,
                        kMembership)
        .below_autograd("aten::isin.Scalar_Tensor", &isin_scalar_tensor, kMembership)
        .below_autograd("aten::isin.Scalar_Tensor_out", &IntoSameType<&isin_scalar_tensor>::call,
                        kMembership)
        .registered();

}  // namespace
}  // namespace meshrun
