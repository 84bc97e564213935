// Views of the same elements in another shape or order: the local tensor's view is the part of the
// global one's.
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/InferSize.h"
#include "ATen/TensorUtils.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/WrapDimUtilsMulti.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/_conj.h"
#include "ATen/ops/_neg_view.h"
#include "ATen/ops/_unsafe_view.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_strided.h"
#include "ATen/ops/view_as_complex.h"
#include "ATen/ops/view_as_real.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/operators/view_parts.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

// What view() and reshape() start from, where no element has to move: dimensions of one element are
// taken away, if their cuts alone are in the way.
struct Viewed {
  at::Tensor local;
  std::optional<ShardLayout> layout;
};

Viewed viewed(const at::Tensor& self, const Lengths& shape) {
  const SpecPtr& spec = spec_of(self);
  Part part{local_of(self), spec->layout()};
  std::optional<ShardLayout> layout = reshaped(part.layout, shape);
  if (layout) return {std::move(part.local), std::move(layout)};
  for (int64_t dim = self.dim() - 1; dim >= 0; --dim) {
    if (!part.layout.is_sharded(dim) || self.size(dim) != 1) continue;
    part = select_part(spec->mesh(), std::move(part), dim, 0);
  }
  layout = reshaped(part.layout, shape);
  return {std::move(part.local), std::move(layout)};
}

ShardTensorError not_a_view(const at::Tensor& self, const Lengths& shape) {
  return ShardTensorError(fmt::format(
      "view: [{}] would move elements between ranks, since pieces of {} end within its "
      "rows: use reshape, which redistributes; under torch.func and vmap, where a layer "
      "on a cut sequence is a view too, redistribute the tensor before",
      fmt::join(shape, ", "), spec_of(self)->to_string()));
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Lengths shape = at::infer_size(size, self.numel());
  const Viewed part = viewed(self, shape);
  if (!part.layout) throw not_a_view(self, shape);
  const SpecPtr spec = make_spec(spec_of(self)->mesh(), *part.layout);
  const auto strides = at::detail::computeStride(self.sizes(), self.strides(), shape);
  TORCH_CHECK(strides.has_value(),
              "view size is not compatible with input tensor's size and stride (at least one "
              "dimension spans across two contiguous subspaces). Use .reshape(...) instead.");
  // Expanded memory, which nobody writes, says that it is contiguous.
  const at::DimVector own(spec->local_shape());
  const bool has_order =
      at::detail::computeStride(part.local.sizes(), part.local.strides(), own).has_value();
  return wrap_view(has_order ? part.local.view(own) : part.local.reshape(own), spec, *strides);
}

at::Tensor unsafe_view(const at::Tensor& self, at::IntArrayRef size) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const Lengths shape = at::infer_size(size, self.numel());
  const Viewed part = viewed(self, shape);
  if (!part.layout) throw not_a_view(self, shape);
  const SpecPtr spec = make_spec(spec_of(self)->mesh(), *part.layout);
  return wrap(part.local.reshape(spec->local_shape()), spec);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef) {
  return view(self, size);
}

// Above autograd: a view where it can be one.
at::Tensor reshape(const at::Tensor& self, at::IntArrayRef size) {
  const Lengths shape = at::infer_size(size, self.numel());
  at::Tensor input = self;
  Viewed part = viewed(input, shape);
  if (!part.layout) {
    const SpecPtr& spec = spec_of(self);
    input = redistribute(self, make_spec(spec->mesh(), reshapeable(spec->layout(), shape)));
    part = viewed(input, shape);
  }
  const SpecPtr spec = make_spec(spec_of(input)->mesh(), *part.layout);
  const bool is_view =
      at::detail::computeStride(input.sizes(), input.strides(), at::DimVector(shape)).has_value();
  if (is_view) return input.view(shape);
  return at::_unsafe_view(input.clone(at::MemoryFormat::Contiguous), shape);
}

at::Tensor ravel(const at::Tensor& self) {
  const int64_t all = -1;
  return meshrun::reshape(self, all);
}

at::Tensor flatten(const at::Tensor& self, int64_t start, int64_t end) {
  start = at::maybe_wrap_dim(start, self.dim());
  end = at::maybe_wrap_dim(end, self.dim());
  TORCH_CHECK(start <= end, "flatten() has invalid args: start_dim cannot come after end_dim");
  Lengths shape = self.sizes().vec();
  if (shape.empty()) shape.push_back(1);
  for (int64_t dim = end; dim > start; --dim) {
    shape[static_cast<size_t>(start)] *= shape[static_cast<size_t>(dim)];
    shape.erase(shape.begin() + dim);
  }
  return meshrun::reshape(self, shape);
}

at::Tensor unflatten(const at::Tensor& self, int64_t dim, at::IntArrayRef sizes) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  const Lengths parts = at::infer_size(sizes, self.size(dim));
  Lengths shape = self.sizes().vec();
  shape.erase(shape.begin() + dim);
  shape.insert(shape.begin() + dim, parts.begin(), parts.end());
  return meshrun::reshape(self, shape);
}

at::Tensor expand(const at::Tensor& self, at::IntArrayRef size, bool) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto geometry = at::inferExpandGeometry_dimvector(self.sizes(), self.strides(), size);
  const SpecPtr& spec = spec_of(self);
  Part part{local_of(self), spec->layout()};
  const int64_t added = static_cast<int64_t>(size.size()) - self.dim();
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    const int64_t extent = geometry.sizes[static_cast<size_t>(dim + added)];
    if (self.size(dim) == extent) continue;
    if (part.layout.is_sharded(dim)) {
      part = select_part(spec->mesh(), std::move(part), dim, 0);
      part = {part.local.unsqueeze(dim), with_dim(part.layout, dim)};
    }
    part.layout = with_extent(part.layout, dim, extent);
  }
  for (int64_t dim = added; dim-- > 0;) {
    part.layout = with_dim(part.layout, 0, geometry.sizes[static_cast<size_t>(dim)]);
  }
  const SpecPtr expanded = make_spec(spec->mesh(), std::move(part.layout));
  return wrap_view(part.local.expand(expanded->local_shape()), expanded, geometry.strides);
}

at::Tensor permute(const at::Tensor& self, at::IntArrayRef dims) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(static_cast<int64_t>(dims.size()) == self.dim(), "permute: ", dims.size(),
              " dims for a tensor with ", self.dim());
  Lengths order;
  std::vector<bool> seen(dims.size());
  for (const int64_t dim : dims) {
    order.push_back(at::maybe_wrap_dim(dim, self.dim()));
    TORCH_CHECK(!seen[static_cast<size_t>(order.back())], "permute: dimension ", dim,
                " comes twice");
    seen[static_cast<size_t>(order.back())] = true;
  }
  const SpecPtr& spec = spec_of(self);
  const at::IntArrayRef from = self.strides();
  c10::DimVector strides;
  for (const int64_t dim : order) strides.push_back(from[static_cast<size_t>(dim)]);
  return wrap_view(local_of(self).permute(order),
                   make_spec(spec->mesh(), permuted(spec->layout(), order)), strides);
}

at::Tensor transpose(const at::Tensor& self, int64_t dim0, int64_t dim1) {
  Lengths order(static_cast<size_t>(self.dim()));
  std::iota(order.begin(), order.end(), int64_t{0});
  dim0 = at::maybe_wrap_dim(dim0, self.dim());
  dim1 = at::maybe_wrap_dim(dim1, self.dim());
  if (!order.empty()) {
    std::swap(order[static_cast<size_t>(dim0)], order[static_cast<size_t>(dim1)]);
  }
  return meshrun::permute(self, order);
}

at::Tensor t(const at::Tensor& self) {
  TORCH_CHECK(self.dim() <= 2, "t() takes a tensor with at most 2 dimensions, not ", self.dim());
  return meshrun::transpose(self, 0, self.dim() < 2 ? 0 : 1);
}

at::Tensor unsqueeze(const at::Tensor& self, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  dim = at::maybe_wrap_dim(dim, self.dim() + 1);
  const SpecPtr& spec = spec_of(self);
  c10::DimVector strides(self.strides());
  const int64_t stride = dim == self.dim() ? 1 : self.size(dim) * strides[static_cast<size_t>(dim)];
  strides.insert(strides.begin() + dim, stride);
  return wrap_view(local_of(self).unsqueeze(dim),
                   make_spec(spec->mesh(), with_dim(spec->layout(), dim)), strides);
}

at::Tensor squeeze_dims(const at::Tensor& self, at::IntArrayRef dims) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr& spec = spec_of(self);
  const auto chosen = at::dim_list_to_bitset(dims, self.dim());
  Part part{local_of(self).alias(), spec->layout()};
  c10::DimVector strides(self.strides());
  for (int64_t dim = self.dim() - 1; dim >= 0; --dim) {
    if (!chosen[static_cast<size_t>(dim)] || self.size(dim) != 1) continue;
    part = select_part(spec->mesh(), std::move(part), dim, 0);
    strides.erase(strides.begin() + dim);
  }
  return wrap_view(std::move(part.local), make_spec(spec->mesh(), std::move(part.layout)), strides);
}

at::Tensor squeeze(const at::Tensor& self) {
  Lengths all(static_cast<size_t>(self.dim()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return squeeze_dims(self, all);
}

at::Tensor squeeze_dim(const at::Tensor& self, int64_t dim) { return squeeze_dims(self, {dim}); }

// The forms in place.
template <auto Out, typename... Arguments>
at::Tensor& become(at::Tensor& self, Arguments... arguments) {
  const at::Tensor result = Out(self, arguments...);
  shard_impl(self)->replace_by_view(*shard_impl(result));
  return self;
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef, at::IntArrayRef,
                      std::optional<int64_t>) {
  throw ShardTensorError(fmt::format(
      "as_strided: {} has no memory of its global shape, so strides mean nothing: use select, "
      "slice, permute, view or expand, or take to_local()",
      spec_of(self)->to_string()));
}

// A view of factors or candidates is theirs only where the view and the reduction change places:
// the largest of negated numbers is the negated smallest.
void check_linear(const at::Tensor& self, const char* operation) {
  for (const Placement& placement : spec_of(self)->placements()) {
    if (!placement.is_partial() || placement.op() == PartialOp::kSum ||
        placement.op() == PartialOp::kAvg) {
      continue;
    }
    throw ShardTensorError(
        fmt::format("{}: {} is not reduced yet, and a view cannot reduce it: redistribute it first",
                    operation, meshrun::to_string(spec_of(self)->placements())));
  }
}

at::Tensor conjugate(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return wrap_view(at::_conj(local_of(self)), spec_of(self), self.strides());
}

at::Tensor negative(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_linear(self, "_neg_view");
  return wrap_view(at::_neg_view(local_of(self)), spec_of(self), self.strides());
}

at::Tensor view_as_real(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_linear(self, "view_as_real");
  const SpecPtr& spec = spec_of(self);
  c10::DimVector strides(self.strides());
  for (int64_t& stride : strides) stride *= 2;
  strides.push_back(1);
  return wrap_view(at::view_as_real(local_of(self).resolve_conj()),
                   make_spec(spec->mesh(), with_dim(spec->layout(), self.dim(), 2)), strides);
}

// LibTorch's own ask the tensor whether it is a conjugate view; the local tensor knows. They are
// views of the memory, so writes through them arrive.
bool is_conjugate_view(const at::Tensor& self) {
  return self.is_complex() && local_of(self).is_conj();
}

at::Tensor real(const at::Tensor& self) {
  if (!self.is_complex()) return self;
  const at::Tensor values = is_conjugate_view(self) ? at::_conj(self) : self;
  return at::select(at::view_as_real(values), self.dim(), 0);
}

at::Tensor imag(const at::Tensor& self) {
  TORCH_CHECK(self.is_complex(), "imag is not implemented for tensors with non-complex dtypes.");
  if (!is_conjugate_view(self)) return at::select(at::view_as_real(self), self.dim(), 1);
  return at::_neg_view(at::select(at::view_as_real(at::_conj(self)), self.dim(), 1));
}

at::Tensor view_as_complex(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  check_linear(self, "view_as_complex");
  const SpecPtr& spec = spec_of(self);
  if (self.dim() == 0 || spec->is_sharded(self.dim() - 1)) {
    throw ShardTensorError(fmt::format("view_as_complex: the last dimension of {} has to be whole",
                                       spec->to_string()));
  }
  c10::DimVector strides(self.strides());
  strides.pop_back();
  for (int64_t& stride : strides) stride /= 2;
  // Expanded memory, which nobody writes, says that it is contiguous.
  const at::Tensor& own = local_of(self);
  at::Tensor local = self.is_contiguous() ? own.contiguous() : own;
  if (local.numel() == 0) local = at::empty(local.sizes(), local.options());  // of any strides
  return wrap_view(at::view_as_complex(local),
                   make_spec(spec->mesh(), selected(spec->layout(), self.dim() - 1, 0)), strides);
}

// The layout of elements of `to` bytes in the memory of elements of `from` bytes. Absent: an
// element would lie on two ranks.
std::optional<ShardLayout> with_element_size(const ShardLayout& layout, int64_t from, int64_t to) {
  std::vector<DimCut> cuts = layout.cuts();
  for (int64_t& size : cuts.back().sizes) {
    if (size * from % to != 0) return std::nullopt;
    size = size * from / to;
  }
  return ShardLayout::with_cuts(layout.mesh_shape(), layout.placements(), std::move(cuts));
}

at::Tensor view_dtype(const at::Tensor& self, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr& spec = spec_of(self);
  if (spec->has_partial()) {
    throw ShardTensorError(fmt::format("view: {} as {} needs values, not summands",
                                       spec->to_string(), c10::toString(dtype)));
  }
  const auto from = static_cast<int64_t>(self.element_size());
  const auto to = static_cast<int64_t>(c10::elementSize(dtype));
  if (from == to) return wrap_view(local_of(self).view(dtype), spec, self.strides());
  // LibTorch's errors, which are of the whole tensor.
  at::empty_strided(self.sizes(), self.strides(), self.options().device(at::kMeta)).view(dtype);
  const auto layout = with_element_size(spec->layout(), from, to);
  if (!layout) {
    throw ShardTensorError(fmt::format(
        "view: {} as {} has elements that lie on two ranks: redistribute the last dimension first",
        spec->to_string(), c10::toString(dtype)));
  }
  const SpecPtr seen = make_spec(spec->mesh(), *layout);
  c10::DimVector strides(self.strides());
  for (int64_t& stride : strides) stride = stride * from / to;
  strides.back() = 1;
  const at::Tensor& own = local_of(self);
  if (own.numel() == 0) {  // of any strides
    return wrap_view(at::empty(seen->local_shape(), own.options().dtype(dtype)), seen, strides);
  }
  // Expanded memory, which nobody writes, says that it is contiguous.
  const at::Tensor local = self.is_contiguous() ? own.contiguous() : own;
  return wrap_view(local.view(dtype), seen, strides);
}

const Movement kView = {"any", "nothing", "nothing"};
const Movement kLinearView = {"any Shard, Replicate, Partial(sum), Partial(avg); else an error",
                              "nothing", "nothing"};
const Movement kShape = {"any whose cuts fall between rows of the new shape; else view is an error",
                         "nothing", "as reshape"};
const Movement kReshape = {"any whose cuts fall between rows of the new shape",
                           "an axis whose cut does not survive moves to the first of the "
                           "dimensions that are merged or split, or is gathered",
                           "the same way back"};
const Movement kSqueeze = {"any", "nothing; without a cut dimension of one element it is Partial",
                           "nothing"};
const Movement kExpand = {"any; an expanded dimension that is cut becomes Partial", "nothing",
                          "as sum"};

const bool kRegistered =
    OperatorFamily("views")
        .below_autograd("aten::view", &view, kShape)
        .below_autograd("aten::_unsafe_view", &unsafe_view, kShape)
        .below_autograd("aten::_reshape_alias", &reshape_alias, kShape)
        .above_autograd("aten::reshape", &reshape, kReshape)
        .above_autograd("aten::ravel", &ravel, kReshape)
        .above_autograd("aten::flatten.using_ints", &flatten, kReshape)
        .above_autograd("aten::unflatten.int", &unflatten, kReshape)
        .below_autograd("aten::expand", &expand, kExpand)
        .below_autograd("aten::permute", &permute, kView)
        .below_autograd("aten::transpose.int", &transpose, kView)
        .below_autograd("aten::transpose_", &become<&transpose, int64_t, int64_t>, kView)
        .below_autograd("aten::t", &t, kView)
        .below_autograd("aten::t_", &become<&t>, kView)
        .below_autograd("aten::unsqueeze", &unsqueeze, kView)
        .below_autograd("aten::unsqueeze_", &become<&unsqueeze, int64_t>, kView)
        .below_autograd("aten::squeeze", &squeeze, kSqueeze)
        .below_autograd("aten::squeeze.dim", &squeeze_dim, kSqueeze)
        .below_autograd("aten::squeeze.dims", &squeeze_dims, kSqueeze)
        .below_autograd("aten::squeeze_", &become<&squeeze>, kSqueeze)
        .below_autograd("aten::squeeze_.dim", &become<&squeeze_dim, int64_t>, kSqueeze)
        .below_autograd("aten::squeeze_.dims", &become<&squeeze_dims, at::IntArrayRef>, kSqueeze)
        .below_autograd("aten::as_strided", &as_strided, {"none: an error", "", ""})
        .below_autograd("aten::_conj", &conjugate, kView)
        .below_autograd("aten::_neg_view", &negative, kLinearView)
        .below_autograd("aten::view_as_real", &view_as_real, kLinearView)
        .above_autograd("aten::real", &real, kLinearView)
        .above_autograd("aten::imag", &imag, kLinearView)
        .below_autograd("aten::view_as_complex", &view_as_complex,
                        {"any Shard, Replicate, Partial(sum), Partial(avg) with a whole last "
                         "dimension; else an error",
                         "nothing", "nothing"})
        .below_autograd("aten::view.dtype", &view_dtype,
                        {"Shard and Replicate; a larger element that would lie on two ranks is an "
                         "error",
                         "nothing", ""})
        .registered();

}  // namespace
}  // namespace meshrun
