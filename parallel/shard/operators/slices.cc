// Parts of a tensor along a dimension. A slice of a cut dimension is what each rank has of it; one
// index of it is Partial: the rank that has the row shares its memory, the others have zeros.
#include <numeric>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/diagonal.h"
#include "ATen/ops/unfold_backward.h"
#include "fmt/format.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/operands.h"
#include "parallel/shard/operators/view_parts.h"

namespace meshrun {

Part select_part(const ShardMesh::Ptr& mesh, Part part, int64_t dim, int64_t index) {
  const Box box = part.layout.box(mesh->coordinate());
  const auto d = static_cast<size_t>(dim);
  const int64_t own = index - box.offsets[d];
  ShardLayout layout = selected(part.layout, dim, index);
  if (own >= 0 && own < box.sizes[d]) return {part.local.select(dim, own), std::move(layout)};
  std::vector<int64_t> shape = box.sizes;
  shape.erase(shape.begin() + dim);
  return {part.local.new_zeros(shape), std::move(layout)};
}

Part slice_part(const ShardMesh::Ptr& mesh, Part part, int64_t dim, const SliceRange& range) {
  const Box box = part.layout.box(mesh->coordinate());
  const auto d = static_cast<size_t>(dim);
  const SliceRange own = range.within(box.offsets[d], box.sizes[d]);
  return {part.local.slice(dim, own.start, own.end, own.step), sliced(part.layout, dim, range)};
}

SliceRange slice_range(int64_t extent, std::optional<int64_t> start, std::optional<int64_t> end,
                       int64_t step) {
  TORCH_CHECK_VALUE(step > 0, "slice step must be positive, not ", step);
  const auto clamped = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + extent : at, 0, extent);
  };
  const int64_t first = clamped(start.value_or(0));
  return {first, std::max(first, clamped(end.value_or(extent))), step};
}

namespace {

using Lengths = std::vector<int64_t>;

at::Tensor wrapped(const ShardMesh::Ptr& mesh, Part part, at::IntArrayRef strides) {
  return wrap_view(std::move(part.local), make_spec(mesh, std::move(part.layout)), strides);
}

Part part_of(const at::Tensor& self) { return {local_of(self), spec_of(self)->layout()}; }

at::Tensor slice(const at::Tensor& self, int64_t dim, std::optional<int64_t> start,
                 std::optional<int64_t> end, int64_t step) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(self.dim() > 0, "slice() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const ShardMesh::Ptr& mesh = spec_of(self)->mesh();
  const SliceRange range = slice_range(self.size(dim), start, end, step);
  c10::DimVector strides(self.strides());
  strides[static_cast<size_t>(dim)] *= step;
  return wrapped(mesh, slice_part(mesh, part_of(self), dim, range), strides);
}

int64_t wrapped_index(const at::Tensor& self, int64_t dim, int64_t index) {
  TORCH_CHECK_INDEX(self.dim() > 0, "select() cannot be applied to a 0-dim tensor.");
  const int64_t extent = self.size(dim);
  TORCH_CHECK_INDEX(index >= -extent && index < extent, "select(): index ", index,
                    " out of range for tensor of size ", self.sizes(), " at dimension ", dim);
  return index < 0 ? index + extent : index;
}

at::Tensor select(const at::Tensor& self, int64_t dim, int64_t index) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK_INDEX(self.dim() > 0, "select() cannot be applied to a 0-dim tensor.");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const ShardMesh::Ptr& mesh = spec_of(self)->mesh();
  c10::DimVector strides(self.strides());
  strides.erase(strides.begin() + dim);
  return wrapped(mesh, select_part(mesh, part_of(self), dim, wrapped_index(self, dim, index)),
                 strides);
}

std::vector<at::Tensor> unbind(const at::Tensor& self, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < self.size(dim); ++i) all.push_back(meshrun::select(self, dim, i));
  return all;
}

std::vector<at::Tensor> split_with_sizes(const at::Tensor& self, at::IntArrayRef sizes,
                                         int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "split expects at least a 1-dimensional tensor");
  dim = at::maybe_wrap_dim(dim, self.dim());
  int64_t total = 0;
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 0,
                "split_with_sizes expects split_sizes have only non-negative entries, "
                "but got split_sizes=",
                sizes);
    total += size;
  }
  TORCH_CHECK(total == self.size(dim), "split_with_sizes expects split_sizes to sum exactly to ",
              self.size(dim), " (input tensor's size at dimension ", dim,
              "), but got split_sizes=", sizes);
  std::vector<at::Tensor> all;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    all.push_back(meshrun::slice(self, dim, start, start + size, 1));
    start += size;
  }
  return all;
}

std::vector<at::Tensor> split(const at::Tensor& self, int64_t size, int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "split expects at least a 1-dimensional tensor");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t extent = self.size(dim);
  TORCH_CHECK(size > 0 || (size == 0 && extent == 0),
              "split expects split_size be positive, but got split_size=", size);
  Lengths sizes;
  for (int64_t left = extent; left > 0; left -= sizes.back()) {
    sizes.push_back(std::min(size, left));
  }
  if (sizes.empty()) sizes.push_back(0);
  return meshrun::split_with_sizes(self, sizes, dim);
}

at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  TORCH_CHECK(self.dim() > 0, "unfold() of a tensor without dimensions");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const SpecPtr& spec = spec_of(self);
  if (spec->is_sharded(dim)) {
    throw ShardTensorError(
        fmt::format("unfold: dimension {} of {} has to be whole: redistribute it first", dim,
                    spec->to_string()));
  }
  const at::Tensor local = local_of(self).unfold(dim, size, step);
  c10::DimVector strides(self.strides());
  strides.push_back(strides[static_cast<size_t>(dim)]);
  strides[static_cast<size_t>(dim)] *= step;
  return wrap_view(
      local,
      make_spec(spec->mesh(),
                with_dim(with_extent(spec->layout(), dim, local.size(dim)), self.dim(), size)),
      strides);
}

at::Tensor unfold_backward(const at::Tensor& gradient, at::IntArrayRef input_sizes, int64_t dim,
                           int64_t size, int64_t step) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto ndim = static_cast<int64_t>(input_sizes.size());
  dim = at::maybe_wrap_dim(dim, ndim);
  // The windows, and what is in one, whole.
  LayoutDraft draft(spec_of(gradient)->layout());
  draft.make_whole(dim, gradient.size(dim));
  draft.make_whole(ndim, size);
  const ShardMesh::Ptr& mesh = spec_of(gradient)->mesh();
  const at::Tensor local = local_as(gradient, make_spec(mesh, draft.layout()));
  const SpecPtr spec = make_spec(
      mesh,
      selected(with_extent(draft.layout(), dim, input_sizes[static_cast<size_t>(dim)]), ndim, 0));
  return wrap(at::unfold_backward(local, spec->local_shape(), dim, size, step), spec);
}

at::Tensor zeros_of(const at::Tensor& gradient, const SpecPtr& spec) {
  return local_of(gradient).new_zeros(spec->local_shape());
}

at::Tensor slice_backward(const at::Tensor& gradient, at::IntArrayRef input_sizes, int64_t dim,
                          int64_t start, int64_t end, int64_t step) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  dim = at::maybe_wrap_dim(dim, static_cast<int64_t>(input_sizes.size()));
  const int64_t extent = input_sizes[static_cast<size_t>(dim)];
  const SliceRange range = slice_range(extent, start, end, step);
  const SpecPtr& from = spec_of(gradient);
  const SpecPtr spec = make_spec(from->mesh(), unsliced(from->layout(), dim, range, extent));
  const at::Tensor result = zeros_of(gradient, spec);
  slice_part(spec->mesh(), {result, spec->layout()}, dim, range).local.copy_(local_of(gradient));
  return wrap(result, spec);
}

at::Tensor select_backward(const at::Tensor& gradient, at::IntArrayRef input_sizes, int64_t dim,
                           int64_t index) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  dim = at::maybe_wrap_dim(dim, static_cast<int64_t>(input_sizes.size()));
  const int64_t extent = input_sizes[static_cast<size_t>(dim)];
  const SpecPtr& from = spec_of(gradient);
  const SpecPtr spec = make_spec(from->mesh(), with_dim(from->layout(), dim, extent));
  const at::Tensor result = zeros_of(gradient, spec);
  result.select(dim, index < 0 ? index + extent : index).copy_(local_of(gradient));
  return wrap(result, spec);
}

// The view of a local part whose rows and columns begin at these places of the whole.
at::Tensor diagonal_of(const at::Tensor& local, const Box& box, int64_t offset, int64_t dim1,
                       int64_t dim2) {
  return at::diagonal(
      local,
      offset + box.offsets[static_cast<size_t>(dim1)] - box.offsets[static_cast<size_t>(dim2)],
      dim1, dim2);
}

at::Tensor diagonal_view(const at::Tensor& self, int64_t offset, int64_t dim1, int64_t dim2) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  dim1 = at::maybe_wrap_dim(dim1, self.dim());
  dim2 = at::maybe_wrap_dim(dim2, self.dim());
  TORCH_CHECK(dim1 != dim2, "diagonal dimensions cannot be identical ", dim1, ", ", dim2);
  const SpecPtr& spec = spec_of(self);
  return with_shard_errors([&] {
    const SpecPtr result = make_spec(spec->mesh(), diagonal(spec->layout(), offset, dim1, dim2));
    c10::DimVector strides(self.strides());
    const int64_t stride = strides[static_cast<size_t>(dim1)] + strides[static_cast<size_t>(dim2)];
    strides.erase(strides.begin() + std::max(dim1, dim2));
    strides.erase(strides.begin() + std::min(dim1, dim2));
    strides.push_back(stride);
    return wrap_view(diagonal_of(local_of(self), spec->box(), offset, dim1, dim2), result, strides);
  });
}

at::Tensor diagonal_backward(const at::Tensor& gradient, at::IntArrayRef input_sizes,
                             int64_t offset, int64_t dim1, int64_t dim2) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto ndim = static_cast<int64_t>(input_sizes.size());
  dim1 = at::maybe_wrap_dim(dim1, ndim);
  dim2 = at::maybe_wrap_dim(dim2, ndim);
  const SpecPtr& from = spec_of(gradient);
  // Rows as the diagonal is cut; columns whole.
  const int64_t first = std::max<int64_t>(0, -offset);
  ShardLayout layout = unsliced(from->layout(), ndim - 2, {first, first + gradient.size(-1)},
                                input_sizes[static_cast<size_t>(dim1)]);
  layout = with_dim(layout, ndim - 1, input_sizes[static_cast<size_t>(dim2)]);
  Lengths order;
  for (int64_t dim = 0, other = 0; dim < ndim; ++dim) {
    order.push_back(dim == dim1 ? ndim - 2 : dim == dim2 ? ndim - 1 : other++);
  }
  const SpecPtr spec = make_spec(from->mesh(), permuted(layout, order));
  const at::Tensor result = zeros_of(gradient, spec);
  diagonal_of(result, spec->box(), offset, dim1, dim2).copy_(local_of(gradient));
  return wrap(result, spec);
}

const Movement kSlice = {"any",
                         "nothing: each rank keeps what it has of the range, which may be "
                         "uneven",
                         "nothing"};
const Movement kUnbind = {"any", "nothing: one index of a cut dimension is Partial(sum)",
                          "nothing; a gradient along a cut dimension is whole"};
const Movement kDiagonal = {"any where one of the two dimensions is whole; else an error",
                            "nothing", "nothing"};
const Movement kBackward = {"any", "nothing", "nothing"};

const bool kRegistered =
    OperatorFamily("views")
        .below_autograd("aten::slice.Tensor", &slice, kSliceMovement)
        .below_autograd("aten::split.Tensor", &split, kSlice)
        .below_autograd("aten::split_with_sizes", &split_with_sizes, kSlice)
        .below_autograd("aten::unsafe_split.Tensor", &split, kSlice)
        .below_autograd("aten::unsafe_split_with_sizes", &split_with_sizes, kSlice)
        .below_autograd("aten::select.int", &select, kSelectMovement)
        .below_autograd("aten::unbind.int", &unbind, kUnbind)
        .below_autograd("aten::diagonal", &diagonal_view, kDiagonal)
        .below_autograd("aten::unfold", &unfold,
                        {"any with that dimension whole; else an error", "nothing",
                         "windows that are cut are gathered"})
        .below_autograd("aten::unfold_backward", &unfold_backward, kBackward)
        .below_autograd("aten::slice_backward", &slice_backward, kBackward)
        .below_autograd("aten::select_backward", &select_backward, kBackward)
        .below_autograd("aten::diagonal_backward", &diagonal_backward, kBackward)
        .registered();

}  // namespace
}  // namespace meshrun
