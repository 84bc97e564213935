// Elements that are chosen or paired by their places: a diagonal, the two halves of a dimension,
// vectors of three, a quarter turn, and flat indices.
#include <algorithm>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/ops/flip.h"
#include "ATen/ops/glu.h"
#include "ATen/ops/glu_backward.h"
#include "ATen/ops/linalg_cross.h"
#include "ATen/ops/take.h"
#include "ATen/ops/trace.h"
#include "ATen/ops/zeros_like.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/aligned.h"
#include "parallel/shard/operators/flat_indices.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/reduced.h"
#include "parallel/shard/operators/row_exchange.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

at::Tensor trace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  // The sum has another type than integral summands.
  const at::Tensor input = at::isIntegralType(self.scalar_type(), /*includeBool=*/true)
                               ? without_summands(self)
                               : with_sums_only(self);
  const SpecPtr& spec = spec_of(input);
  const Box& box = spec->box();
  // The square on the diagonal of the whole matrix that this rank has.
  const int64_t begin = std::max(box.offsets[0], box.offsets[1]);
  const int64_t end = std::min(box.offsets[0] + box.sizes[0], box.offsets[1] + box.sizes[1]);
  const bool has_any = end > begin;
  at::Tensor square = to_local(input);
  for (int64_t dim = 0; dim < 2; ++dim) {
    square = has_any
                 ? square.narrow(dim, begin - box.offsets[static_cast<size_t>(dim)], end - begin)
                 : square.narrow(dim, 0, 0);
  }
  return from_local(at::trace(square), reduced_spec(spec, {0, 1}, /*keepdim=*/false, Partial()));
}

// `spec` with another cut of `dim`, on the same axes.
SpecPtr cut_otherwise(const SpecPtr& spec, int64_t dim, const DimCut& cut) {
  std::vector<DimCut> cuts = spec->layout().cuts();
  cuts[static_cast<size_t>(dim)] = cut;
  return make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(), spec->placements(),
                                                        std::move(cuts)));
}

// How a dimension is cut in halves: index i of one half is on the rank of index i of the other.
struct Halves {
  Halves(const SpecPtr& spec, int64_t dim) {
    const DimCut& cut = spec->layout().cuts()[static_cast<size_t>(dim)];
    const int64_t extent = spec->global_shape()[static_cast<size_t>(dim)] / 2;
    one = even_cut(spec->mesh()->shape(), cut.axes, extent);
    both = one;
    for (int64_t& size : both.sizes) size *= 2;
    is_cut = !cut.axes.empty();
    if (!is_cut) return;
    int64_t begin = 0;
    for (const int64_t size : one.sizes) {
      for (const int64_t half : {int64_t{0}, extent}) {
        for (int64_t i = begin; i < begin + size; ++i) rows.push_back(half + i);
      }
      begin += size;
    }
    places.resize(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      places[static_cast<size_t>(rows[i])] = static_cast<int64_t>(i);
    }
  }

  bool is_cut = false;
  DimCut one;
  DimCut both;
  Lengths rows;    // of the dimension, as they lie in pairs of halves
  Lengths places;  // where each row lies then
};

int64_t checked_halving_dim(const at::Tensor& self, int64_t dim) {
  TORCH_CHECK(self.dim() > 0, "glu does not support 0-dimensional tensors");
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.size(along) % 2 == 0, "Halving dimension must be even, but dimension ", along,
              " is size ", self.size(along));
  return along;
}

// This rank's pairs of halves of a tensor without Partial.
at::Tensor paired(const at::Tensor& tensor, int64_t dim, const Halves& halves) {
  if (!halves.is_cut) return to_local(tensor);
  const SpecPtr& spec = spec_of(tensor);
  return exchange_rows(to_local(tensor), spec->mesh(), dim,
                       spec->layout().cuts()[static_cast<size_t>(dim)], halves.rows, halves.both);
}

at::Tensor glu(const at::Tensor& self, int64_t dim) {
  dim = checked_halving_dim(self, dim);
  const at::Tensor input = without_summands(self);
  const Halves halves(spec_of(input), dim);
  return from_local(at::glu(paired(input, dim, halves), dim),
                    cut_otherwise(spec_of(input), dim, halves.one));
}

at::Tensor glu_backward(const at::Tensor& grad_output, const at::Tensor& self, int64_t dim) {
  const ShardMesh::Ptr mesh = mesh_of({&grad_output, &self}, "glu_backward");
  dim = checked_halving_dim(self, dim);
  const at::Tensor input = without_summands(promote(self, mesh));
  const SpecPtr spec = spec_of(input);
  const Halves halves(spec, dim);
  const SpecPtr of_gradient = cut_otherwise(spec, dim, halves.one);
  TORCH_CHECK(grad_output.sizes() == at::IntArrayRef(of_gradient->global_shape()),
              "glu_backward: a gradient of ", grad_output.sizes(), " for halves of ", self.sizes());
  const at::Tensor gradient = redistribute(promote(grad_output, mesh), of_gradient);
  at::Tensor local = at::glu_backward(to_local(gradient), paired(input, dim, halves), dim);
  if (halves.is_cut) {
    local = exchange_rows(local, mesh, dim, halves.both, halves.places,
                          spec->layout().cuts()[static_cast<size_t>(dim)]);
  }
  return from_local(local, spec);
}

at::Tensor linalg_cross(const at::Tensor& self, const at::Tensor& other, int64_t dim) {
  TORCH_CHECK(self.dim() == other.dim(),
              "linalg.cross: inputs must have the same number of dimensions.");
  const int64_t along = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.size(along) == 3 && other.size(along) == 3, "linalg.cross: inputs dimension ",
              dim, " must have length 3. Got ", self.size(along), " and ", other.size(along));
  const auto with_whole_vectors = [&](const at::Tensor& tensor) {
    return is_shard_tensor(tensor) ? redistribute(tensor, with_whole_dims(spec_of(tensor), {along}))
                                   : tensor;
  };
  const at::Tensor first = with_whole_vectors(self);
  const at::Tensor second = with_whole_vectors(other);
  const Aligned aligned = align("linalg_cross", {&first, &second});
  return from_local(at::linalg_cross(aligned.locals[0], aligned.locals[1], along), aligned.spec);
}

at::Tensor rot90(const at::Tensor& self, int64_t k, at::IntArrayRef dims) {
  TORCH_CHECK(dims.size() == 2, "expected total rotation dims == 2, but got dims = ", dims.size());
  TORCH_CHECK(self.dim() >= 2, "expected total dims >= 2, but got total dims = ", self.dim());
  const int64_t first = at::maybe_wrap_dim(dims[0], self.dim());
  const int64_t second = at::maybe_wrap_dim(dims[1], self.dim());
  TORCH_CHECK(first != second, "expected rotation dims to be different, but got dim0 = ", dims[0],
              " and dim1 = ", dims[1]);
  switch ((k % 4 + 4) % 4) {
    case 1:
      return at::flip(self, {second}).transpose(first, second);
    case 2:
      return at::flip(self, {first, second});
    case 3:
      return at::flip(self, {first}).transpose(first, second);
    default:
      return self.clone(at::MemoryFormat::Contiguous);
  }
}

at::Tensor take(const at::Tensor& self, const at::Tensor& index) {
  TORCH_CHECK(index.scalar_type() == at::kLong,
              "take(): Expected a long tensor for index, but got ", index.scalar_type());
  TORCH_CHECK_INDEX(self.numel() > 0 || index.numel() == 0,
                    "take(): tried to take from an empty tensor");
  const ShardMesh::Ptr mesh = mesh_of({&self, &index}, "take");
  const at::Tensor from = promote(self, mesh);
  const at::Tensor chosen = promote(index, mesh);
  const SpecPtr& spec = spec_of(from);

  LayoutDraft draft(mesh->shape(), index.sizes().vec());
  for (int64_t axis = 0; axis < mesh->ndim(); ++axis) {
    const Placement& placement = spec->placements()[static_cast<size_t>(axis)];
    if (!placement.is_replicate()) draft.set(axis, placement.is_shard() ? Partial() : placement);
  }
  for (int64_t d = 0; d < index.dim(); ++d) {
    const DimCut& own = spec_of(chosen)->layout().cuts()[static_cast<size_t>(d)];
    if (draft.may_cut(d, own)) draft.cut(d, own);
  }
  const SpecPtr result = make_spec(mesh, draft.layout());
  draft.drop_partial();
  const at::Tensor index_part = to_local(redistribute(chosen, make_spec(mesh, draft.layout())));
  at::Tensor local = to_local(from, partial_where_replicated(spec, result));
  bool is_whole = true;
  for (int64_t d = 0; d < self.dim(); ++d) is_whole &= !spec->is_sharded(d);
  if (is_whole) return from_local(at::take(local, index_part), result);

  std::vector<at::Tensor> places = unravel(
      lookup(index_part, {0, self.numel(), self.numel()}, /*wraps=*/true).index, self.sizes());
  at::Tensor absent = at::zeros_like(index_part, at::kBool);
  for (size_t d = 0; d < places.size(); ++d) {
    const Lookup found =
        lookup(places[d], {spec->box().offsets[d], spec->box().sizes[d], spec->global_shape()[d]},
               /*wraps=*/false);
    places[d] = found.index;
    absent = absent.logical_or(found.absent);
  }
  at::Tensor flat = ravel(places, local.sizes());
  local = local.reshape({-1});
  if (local.numel() == 0) {
    local = with_spare_row(local, 0);
    flat = at::zeros_like(flat);
  }
  return from_local(at::take(local, flat).masked_fill(absent, 0), result);
}

const bool kRegistered =
    OperatorFamily("selection")
        .above_autograd("aten::trace", &trace,
                        {"any Shard, Replicate, Partial(sum)",
                         "nothing: axes that cut the matrix become Partial(sum)", "nothing"})
        .above_autograd("aten::glu", &glu,
                        {"any Shard, Replicate with the dimension whole",
                         "a Partial is reduced; along a cut dimension each row once, to the rank "
                         "that has the other half's row, in even pieces",
                         "the same rows back"})
        .above_autograd("aten::glu_backward", &glu_backward,
                        {"any Shard, Replicate with the dimension whole in both operands",
                         "a Partial is reduced, the gradient moves to the layout of the other "
                         "operand; along a cut dimension as glu, and back",
                         "the same rows back"})
        .above_autograd("aten::linalg_cross", &linalg_cross,
                        {"as pointwise operators, with the vectors' dimension whole",
                         "a Partial is reduced, a cut dimension of vectors is gathered; all else "
                         "as pointwise operators",
                         "the same way back"})
        .above_autograd(
            "aten::rot90", &rot90,
            {"as flip", "as flip; the transposition moves nothing", "the same rows back"})
        .above_autograd("aten::take", &take,
                        {"any; an index that is cut where the tensor is Replicate",
                         "another index is gathered; where the tensor is cut every rank looks up "
                         "what it has: the result is Partial",
                         "what reduces that Partial, to Replicate; where the index alone was cut "
                         "the gradient is Partial"})
        .registered();

}  // namespace
}  // namespace meshrun
