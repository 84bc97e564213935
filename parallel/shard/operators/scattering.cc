// Elements written to, or added at, places that tensors of indices say. The written tensor's layout
// leads. Where its chosen dimension is cut, every rank takes what falls into its piece.
#include <functional>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/index_reduce.h"
#include "ATen/ops/scatter.h"
#include "ATen/ops/scatter_add.h"
#include "ATen/ops/scatter_reduce.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/layout/view_layout.h"
#include "parallel/shard/operators/assign.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/routed_adds.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;
// Scatter call on local tensors: the one written, the index, the one read (undefined for a number).
using LocalScatter =
    std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

enum class Kind : uint8_t { kWrites, kAdds, kReduces };

// Values of which some are for the row behind this rank's piece. What LibTorch's formula makes of
// that row must be finite: zero times infinity or NaN would be in the gradient of all of them.
at::Tensor with_ones_for_spare(const at::Tensor& values, const at::Tensor& is_spare) {
  return values.masked_fill(is_spare, 1);
}

at::Tensor scatter(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                   const at::Tensor& src, Kind kind, const LocalScatter& call) {
  const ShardMesh::Ptr mesh = mesh_of({&self, &index, &src}, "scatter");
  TORCH_CHECK(
      self.dim() > 0 && index.dim() == self.dim() && (!src.defined() || src.dim() == self.dim()),
      "scatter: the tensor has ", self.dim(), " dimensions, the index ", index.dim());
  dim = at::maybe_wrap_dim(dim, self.dim());
  at::Tensor target = promote(self, mesh);
  target = redistribute(target, without_partial(spec_of(target)));
  at::Tensor places = promote(index, mesh);
  at::Tensor values = promote(src, mesh);
  for (int64_t d = 0; d < self.dim(); ++d) {
    TORCH_CHECK((d == dim || index.size(d) <= self.size(d)) &&
                    (!src.defined() || index.size(d) <= src.size(d)),
                "scatter: index of ", index.sizes(), " for a tensor of ", self.sizes());
    if (src.defined() && src.size(d) > index.size(d)) values = values.narrow(d, 0, index.size(d));
  }

  // Where the result lies, and where the operands lie for it.
  LayoutDraft result(spec_of(target)->layout());
  const DimCut along = spec_of(target)->layout().cuts()[static_cast<size_t>(dim)];
  const ShardLayout leader = spec_of(src.defined() ? values : places)->layout();
  DimCut summed;
  for (int64_t d = 0; d < self.dim(); ++d) {
    const DimCut& own = leader.cuts()[static_cast<size_t>(d)];
    if (d != dim && index.size(d) == self.size(d) && result.may_cut(d, own)) result.cut(d, own);
  }
  {
    const DimCut& own = leader.cuts()[static_cast<size_t>(dim)];
    bool free = kind == Kind::kAdds && !own.axes.empty();
    for (const int64_t axis : own.axes) free &= result.placement(axis).is_replicate();
    if (free) summed = own;
  }
  const ShardLayout layout = result.layout();
  LayoutDraft operand(mesh->shape(), index.sizes().vec());
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d == dim) continue;
    operand.cut(d, sliced(layout, d, {0, index.size(d)}).cuts()[static_cast<size_t>(d)]);
  }
  operand.cut(dim, summed);
  const SpecPtr operand_spec = make_spec(mesh, operand.layout());
  for (const int64_t axis : summed.axes) result.set(axis, Partial());
  const SpecPtr computed = make_spec(mesh, result.layout());

  at::Tensor index_part = to_local(redistribute(places, operand_spec));
  at::Tensor value_part;
  if (values.defined()) {
    values = redistribute(values, operand_spec);
    value_part = to_local(values, partial_where_replicated(operand_spec, computed));
  }
  target = redistribute(target, make_spec(mesh, layout));
  at::Tensor local = summed.axes.empty() ? to_local(target) : at::zeros_like(local_of(target));
  if (!along.axes.empty()) {
    const auto d = static_cast<size_t>(dim);
    const Box& box = spec_of(target)->box();
    index_part = index_or_spare(index_part, {box.offsets[d], box.sizes[d], self.size(dim)}, false);
    if (kind == Kind::kReduces) {
      value_part = with_ones_for_spare(value_part, index_part.eq(box.sizes[d]));
    }
    local = call(with_spare_row(local, dim), index_part, value_part).narrow(dim, 0, box.sizes[d]);
  } else {
    local = call(local, index_part, value_part);
  }
  const at::Tensor scattered = from_local(local, computed);
  return summed.axes.empty() ? scattered : at::add(target, scattered);
}

at::Tensor scatter_src(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                       const at::Tensor& src) {
  return scatter(self, dim, index, src, Kind::kWrites,
                 [=](const at::Tensor& to, const at::Tensor& places, const at::Tensor& values) {
                   return at::scatter(to, dim, places, values);
                 });
}

at::Tensor scatter_value(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                         const at::Scalar& value) {
  return scatter(self, dim, index, {}, Kind::kWrites,
                 [=](const at::Tensor& to, const at::Tensor& places, const at::Tensor&) {
                   return at::scatter(to, dim, places, value);
                 });
}

at::Tensor scatter_add(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                       const at::Tensor& src) {
  if (self.dim() > 0) {
    const int64_t along = at::maybe_wrap_dim(dim, self.dim());
    if (auto added = routed_scatter_add(self, along, index, src)) return *std::move(added);
  }
  return scatter(self, dim, index, src, Kind::kAdds,
                 [=](const at::Tensor& to, const at::Tensor& places, const at::Tensor& values) {
                   return at::scatter_add(to, dim, places, values);
                 });
}

at::Tensor scatter_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                          const at::Tensor& src, c10::string_view reduce, bool include_self) {
  return scatter(self, dim, index, src, Kind::kReduces,
                 [=](const at::Tensor& to, const at::Tensor& places, const at::Tensor& values) {
                   return at::scatter_reduce(to, dim, places, values, reduce, include_self);
                 });
}

// The tensor of a reduction in place: LibTorch's formula reads what was there before.
at::Tensor as_it_was(const at::Tensor& self, const at::Tensor& source) {
  const bool has_gradient =
      c10::GradMode::is_enabled() && (self.requires_grad() || source.requires_grad());
  return has_gradient ? self.clone() : self;
}

at::Tensor& scatter_reduce_(at::Tensor& self, int64_t dim, const at::Tensor& index,
                            const at::Tensor& src, c10::string_view reduce, bool include_self) {
  return self.copy_(
      meshrun::scatter_reduce(as_it_was(self, src), dim, index, src, reduce, include_self));
}

// LibTorch's errors on all ranks.
void check_index_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                        const at::Tensor& source, c10::string_view reduce, bool include_self) {
  TORCH_CHECK(reduce == "prod" || reduce == "mean" || reduce == "amax" || reduce == "amin",
              "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got ",
              reduce, ".");
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_reduce_(): Index is supposed to be a vector, but got ",
                    index.sizes());
  TORCH_CHECK(
      index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
      "index_reduce_(): Expected dtype int32/int64 for index but got: ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "index_reduce_(): self (",
              self.scalar_type(), ") and source (", source.scalar_type(),
              ") must have the same scalar type");
  Lengths shape = self.sizes().vec();
  if (!shape.empty()) shape[static_cast<size_t>(dim)] = index.numel();
  TORCH_CHECK(source.sizes() == at::IntArrayRef(shape) && (self.dim() > 0 || index.numel() == 1),
              "index_reduce_(): source of ", source.sizes(), " for ", index.numel(),
              " indices along dimension ", dim, " of ", self.sizes());
  // Some reductions of some types are refused, where there is anything to reduce.
  const at::ScalarType type = self.scalar_type();
  if ((at::isComplexType(type) || type == at::kBool) && source.numel() > 0) {
    const at::TensorOptions options = at::device(self.device());
    const Lengths ones(shape.size(), 1);
    const at::Tensor one = at::zeros(ones, options.dtype(type));
    at::index_reduce(one, 0, at::zeros({1}, options.dtype(at::kLong)), one, reduce, include_self);
  }
}

at::Tensor index_reduce(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                        const at::Tensor& source, c10::string_view reduce, bool include_self) {
  const ShardMesh::Ptr mesh = mesh_of({&self, &index, &source}, "index_reduce");
  dim = at::maybe_wrap_dim(dim, self.dim());
  check_index_reduce(self, dim, index, source, reduce, include_self);
  if (self.dim() == 0) {
    return meshrun::index_reduce(self.reshape({1}), 0, index, source.reshape({1}), reduce,
                                 include_self)
        .reshape({});
  }
  const at::Tensor places = index.to(at::kLong).reshape({-1});
  const auto call = [=](const at::Tensor& to, const at::Tensor& rows, const at::Tensor& values) {
    return at::index_reduce(to, dim, rows, values, reduce, include_self);
  };
  if (auto reduced = routed_index_reduce(self, dim, places, source, call)) {
    return *std::move(reduced);
  }
  const at::Tensor target = promote(self, mesh);
  const at::Tensor values = promote(source, mesh);
  const ShardLayout leader = spec_of(values)->layout();
  LayoutDraft result(without_partial(spec_of(target))->layout());
  for (int64_t d = 0; d < self.dim(); ++d) {
    const DimCut& own = leader.cuts()[static_cast<size_t>(d)];
    if (d != dim && result.may_cut(d, own)) result.cut(d, own);
  }
  const SpecPtr spec = make_spec(mesh, result.layout());
  LayoutDraft operand(mesh->shape(), source.sizes().vec());
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d != dim) operand.cut(d, spec->layout().cuts()[static_cast<size_t>(d)]);
  }
  const SpecPtr operand_spec = make_spec(mesh, operand.layout());
  const at::Tensor whole_index =
      local_of(redistribute(promote(places, mesh), replicated_spec(mesh, places.sizes())));
  const at::Tensor value_part =
      to_local(redistribute(values, operand_spec), partial_where_replicated(operand_spec, spec));
  const at::Tensor local = to_local(redistribute(target, spec));
  if (!spec->is_sharded(dim)) return from_local(call(local, whole_index, value_part), spec);

  const auto d = static_cast<size_t>(dim);
  const int64_t extent = spec->box().sizes[d];
  const at::Tensor rows =
      index_or_spare(whole_index, {spec->box().offsets[d], extent, self.size(dim)}, false);
  Lengths vector(static_cast<size_t>(self.dim()), 1);
  vector[d] = rows.numel();
  const at::Tensor reduced = call(with_spare_row(local, dim), rows,
                                  with_ones_for_spare(value_part, rows.eq(extent).view(vector)));
  return from_local(reduced.narrow(dim, 0, extent), spec);
}

at::Tensor& index_reduce_(at::Tensor& self, int64_t dim, const at::Tensor& index,
                          const at::Tensor& source, c10::string_view reduce, bool include_self) {
  return self.copy_(
      meshrun::index_reduce(as_it_was(self, source), dim, index, source, reduce, include_self));
}

// An index per row, for all elements of the rows.
at::Tensor for_all_elements(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                            const char* operation) {
  TORCH_CHECK_INDEX(index.dim() <= 1, operation, "(): Index is supposed to be a vector");
  TORCH_CHECK(self.dim() > 0, operation, "() of a tensor without dimensions");
  Lengths shape = self.sizes().vec();
  shape[static_cast<size_t>(dim)] = index.numel();
  Lengths vector(shape.size(), 1);
  vector[static_cast<size_t>(dim)] = index.numel();
  return index.to(at::kLong).reshape(vector).expand(shape);
}

at::Tensor index_add(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                     const at::Tensor& source, const at::Scalar& alpha) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor places = for_all_elements(self, dim, index, "index_add");
  TORCH_CHECK(source.sizes() == places.sizes(), "index_add(): source of ", source.sizes(),
              " for rows of ", places.sizes());
  const at::Tensor scaled = alpha.equal(1) ? source : source * alpha;
  if (auto added = routed_index_add(self, dim, index, scaled)) return *std::move(added);
  return meshrun::scatter_add(self, dim, places, scaled);
}

at::Tensor index_copy(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                      const at::Tensor& source) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor places = for_all_elements(self, dim, index, "index_copy");
  TORCH_CHECK(source.sizes() == places.sizes(), "index_copy(): source of ", source.sizes(),
              " for rows of ", places.sizes());
  return scatter_src(self, dim, places, source);
}

at::Tensor index_fill(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                      const at::Scalar& value) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor from_front = at::where(index < 0, index + self.size(dim), index);
  return scatter_value(self, dim, for_all_elements(self, dim, from_front, "index_fill"), value);
}

at::Tensor index_fill_tensor(const at::Tensor& self, int64_t dim, const at::Tensor& index,
                             const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "index_fill_ only supports a 0-dimensional value tensor");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor from_front = at::where(index < 0, index + self.size(dim), index);
  const at::Tensor places = for_all_elements(self, dim, from_front, "index_fill");
  return scatter_src(self, dim, places, value.expand(places.sizes()));
}

template <auto Out, typename... Arguments>
at::Tensor& in_place(at::Tensor& self, Arguments... arguments) {
  return self.copy_(Out(self, arguments...));
}

using Index = const at::Tensor&;
using Values = const at::Tensor&;
using Number = const at::Scalar&;

const Movement kScatter = {
    "any with index and source cut alike, those of a cut dimension Replicate",
    "index and source move to the tensor's layout, or it is cut as they are where it is Replicate",
    "the source's gradient is Partial where the chosen dimension is cut"};
const Movement kAdd = {"as scatter; a source cut along the dimension where the tensor is Replicate",
                       "tensor, index and source cut alike: each row once, to its owner; else "
                       "index and source move to "
                       "the tensor's layout; what a cut source adds is reduced",
                       "the source's gradient is Partial where the chosen dimension is cut"};
const Movement kReduceRows = {
    "any with the source cut alike but along the dimension, where it is whole, and a whole index",
    "tensor and source cut alike: each row once, to its owner; else the source moves to the "
    "tensor's layout, whole along the dimension, and the index is gathered; a Partial is reduced",
    "the same rows back; the source's gradient is Partial where the chosen dimension is cut"};

const bool kRegistered =
    OperatorFamily("indexing")
        .above_autograd("aten::scatter.src", &scatter_src, kScatter)
        .above_autograd("aten::scatter_.src", &in_place<&scatter_src, int64_t, Index, Values>,
                        kScatter)
        .above_autograd("aten::scatter.value", &scatter_value, kScatter)
        .above_autograd("aten::scatter_.value", &in_place<&scatter_value, int64_t, Index, Number>,
                        kScatter)
        .above_autograd("aten::scatter_reduce.two", &scatter_reduce, kScatter)
        .above_autograd("aten::scatter_reduce_.two", &scatter_reduce_, kScatter)
        .above_autograd("aten::index_reduce", &index_reduce, kReduceRows)
        .above_autograd("aten::index_reduce_", &index_reduce_, kReduceRows)
        .below_autograd("aten::index_reduce.out", &IntoSameType<&index_reduce>::call, kReduceRows)
        .above_autograd("aten::index_copy", &index_copy, kScatter)
        .above_autograd("aten::index_copy_", &in_place<&index_copy, int64_t, Index, Values>,
                        kScatter)
        .above_autograd("aten::index_fill.int_Scalar", &index_fill, kScatter)
        .above_autograd("aten::index_fill_.int_Scalar",
                        &in_place<&index_fill, int64_t, Index, Number>, kScatter)
        .above_autograd("aten::index_fill.int_Tensor", &index_fill_tensor, kScatter)
        .above_autograd("aten::index_fill_.int_Tensor",
                        &in_place<&index_fill_tensor, int64_t, Index, Values>, kScatter)
        .above_autograd("aten::scatter_add", &scatter_add, kAdd)
        .above_autograd("aten::scatter_add_", &in_place<&scatter_add, int64_t, Index, Values>, kAdd)
        .above_autograd("aten::index_add", &index_add, kAdd)
        .above_autograd("aten::index_add_", &in_place<&index_add, int64_t, Index, Values, Number>,
                        kAdd)
        .registered();

}  // namespace
}  // namespace meshrun
