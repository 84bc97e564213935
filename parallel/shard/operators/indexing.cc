// Rows and elements chosen by tensors of indices. Where the dimension that they choose from is cut,
// each rank looks up what it has: the result is Partial, and only that much is ever reduced.
#include <numeric>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/ops/embedding.h"
#include "ATen/ops/gather.h"
#include "ATen/ops/index_select.h"
#include "ATen/ops/one_hot.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/operands.h"
#include "parallel/shard/operators/row_exchange.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;

SpecPtr whole_spec(const at::Tensor& tensor, const ShardMesh::Ptr& mesh) {
  return replicated_spec(mesh, tensor.sizes());
}

PieceOf piece_of(const SpecPtr& spec, int64_t dim) {
  const auto d = static_cast<size_t>(dim);
  return {spec->box().offsets[d], spec->box().sizes[d], spec->global_shape()[d]};
}

Lengths numbers_of(const at::Tensor& index) {
  const at::Tensor numbers = index.to(at::kCPU, at::kLong).contiguous();
  const auto* data = numbers.const_data_ptr<int64_t>();
  return {data, data + numbers.numel()};
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  const ShardMesh::Ptr mesh = mesh_of({&self, &index}, "index_select");
  if (self.dim() == 0) {
    return at::index_select(self.unsqueeze(0), 0, index).reshape({});
  }
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const at::Tensor rows = promote(self, mesh);
  at::Tensor chosen = promote(index.dim() == 0 ? index.unsqueeze(0) : index, mesh);
  const SpecPtr& spec = spec_of(rows);
  const ShardLayout& layout = spec->layout();
  const DimCut& cut = layout.cuts()[static_cast<size_t>(dim)];
  const int64_t count = chosen.numel();

  LayoutDraft draft(layout);
  draft.make_whole(dim, count);
  const DimCut by_index = spec_of(chosen)->layout().cuts()[0];
  if (cut.axes.empty() && draft.may_cut(dim, by_index)) {
    draft.cut(dim, by_index);
    chosen = redistribute(chosen, without_partial(spec_of(chosen)));
  } else {
    chosen = redistribute(chosen, whole_spec(chosen, mesh));
  }
  if (cut.axes.empty()) {
    const SpecPtr result = make_spec(mesh, draft.layout());
    const at::Tensor local = to_local(rows, partial_where_replicated(spec, result));
    return from_local(at::index_select(local, dim, to_local(chosen)), result);
  }
  const Lengths wanted = numbers_of(local_of(chosen));
  for (const int64_t row : wanted) {
    TORCH_CHECK_INDEX(row >= 0 && row < self.size(dim), "index_select(): index ", row,
                      " is out of range for a dimension of ", self.size(dim));
  }
  const DimCut to = even_cut(mesh->shape(), cut.axes, count);
  draft.cut(dim, to);
  return from_local(exchange_rows(to_local(rows), mesh, dim, cut, wanted, to),
                    make_spec(mesh, draft.layout()));
}

at::Tensor gather(const at::Tensor& self, int64_t dim, const at::Tensor& index, bool sparse_grad) {
  const ShardMesh::Ptr mesh = mesh_of({&self, &index}, "gather");
  if (self.dim() == 0 || index.dim() == 0) {
    return at::gather(self.dim() == 0 ? self.unsqueeze(0) : self, dim,
                      index.dim() == 0 ? index.unsqueeze(0) : index, sparse_grad)
        .reshape(index.sizes());
  }
  TORCH_CHECK(index.dim() == self.dim(), "gather: index has ", index.dim(),
              " dimensions, and the "
              "tensor has ",
              self.dim());
  dim = at::maybe_wrap_dim(dim, self.dim());
  at::Tensor from = promote(self, mesh);
  at::Tensor chosen = promote(index, mesh);
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d == dim || index.size(d) == from.size(d)) continue;
    TORCH_CHECK(index.size(d) < from.size(d), "gather: index has ", index.size(d),
                " elements along dimension ", d, ", and the tensor ", from.size(d));
    from = from.narrow(d, 0, index.size(d));
  }
  const ShardLayout layout = spec_of(from)->layout();
  const ShardLayout by_index = spec_of(chosen)->layout();
  const DimCut& cut = layout.cuts()[static_cast<size_t>(dim)];

  // Where the result lies; `indices`, `source`: where the operands lie for it.
  LayoutDraft draft(layout);
  draft.make_whole(dim, index.size(dim));
  LayoutDraft source(layout);
  for (const int64_t axis : cut.axes) draft.set(axis, Partial());
  for (int64_t d = 0; d < self.dim(); ++d) {
    const DimCut& own = by_index.cuts()[static_cast<size_t>(d)];
    if (!draft.may_cut(d, own)) continue;
    draft.cut(d, own);
    if (d != dim) source.cut(d, own);
  }
  const SpecPtr result = make_spec(mesh, draft.layout());
  draft.drop_partial();
  const at::Tensor index_part = to_local(redistribute(chosen, make_spec(mesh, draft.layout())));
  from = redistribute(from, make_spec(mesh, source.layout()));
  at::Tensor local = to_local(from, partial_where_replicated(spec_of(from), result));
  if (cut.axes.empty()) {
    return from_local(at::gather(local, dim, index_part), result);
  }
  const PieceOf piece = piece_of(spec_of(from), dim);
  if (piece.extent == 0) local = with_spare_row(local, dim);
  const Lookup found = lookup(index_part, piece, false);
  return from_local(at::gather(local, dim, found.index).masked_fill(found.absent, 0), result);
}

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices, int64_t padding_idx,
                     bool scale_grad_by_freq, bool sparse) {
  const ShardMesh::Ptr mesh = mesh_of({&weight, &indices}, "embedding");
  TORCH_CHECK(weight.dim() == 2, "'weight' must be 2-D");
  if (sparse) throw ShardTensorError("embedding: gradients of sharded tensors are not sparse");
  at::Tensor table = promote(weight, mesh);
  at::Tensor chosen = promote(indices, mesh);
  if (scale_grad_by_freq) {
    // How often an index comes is known where all of them are.
    table = redistribute(table, with_whole_dims(spec_of(table), {0}));
    chosen = redistribute(chosen, whole_spec(chosen, mesh));
  }
  const SpecPtr spec = spec_of(table);
  const ShardLayout& layout = spec->layout();
  const ShardLayout by_index = spec_of(chosen)->layout();
  const DimCut& rows = layout.cuts()[0];

  LayoutDraft draft(mesh->shape(), [&] {
    Lengths shape = indices.sizes().vec();
    shape.push_back(weight.size(1));
    return shape;
  }());
  for (int64_t axis = 0; axis < mesh->ndim(); ++axis) {
    const Placement& placement = layout.placements()[static_cast<size_t>(axis)];
    if (placement.is_partial()) draft.set(axis, placement);
  }
  draft.cut(indices.dim(), layout.cuts()[1]);
  for (const int64_t axis : rows.axes) draft.set(axis, Partial());
  LayoutDraft index_draft(mesh->shape(), indices.sizes().vec());
  for (int64_t d = 0; d < indices.dim(); ++d) {
    const DimCut& own = by_index.cuts()[static_cast<size_t>(d)];
    if (!draft.may_cut(d, own)) continue;
    draft.cut(d, own);
    index_draft.cut(d, own);
  }
  const SpecPtr result = make_spec(mesh, draft.layout());
  const at::Tensor index_part =
      to_local(redistribute(chosen, make_spec(mesh, index_draft.layout())));
  at::Tensor local = to_local(table, partial_where_replicated(spec, result));
  const auto rows_at = [&](const at::Tensor& index, int64_t padding) {
    if (local.size(1) > 0) return at::embedding(local, index, padding, scale_grad_by_freq);
    // On a GPU LibTorch's gradient of a table without columns reads and writes at address 0 (its
    // issue 189668).
    return at::embedding(local.detach(), index) + local.sum(0);
  };
  if (rows.axes.empty()) return from_local(rows_at(index_part, padding_idx), result);
  const PieceOf piece = piece_of(spec, 0);
  if (piece.extent == 0) local = with_spare_row(local, 0);
  const Lookup found = lookup(index_part, piece, false);
  const int64_t padding = padding_idx >= piece.offset && padding_idx < piece.offset + piece.extent
                              ? padding_idx - piece.offset
                              : -1;
  return from_local(rows_at(found.index, padding).masked_fill(found.absent.unsqueeze(-1), 0),
                    result);
}

at::Tensor one_hot(const at::Tensor& self, int64_t num_classes) {
  const at::Tensor input = redistribute(self, without_partial(spec_of(self)));
  const SpecPtr& spec = spec_of(input);
  const at::Tensor& local = local_of(input);
  if (num_classes < 0) {
    const SpecPtr whole = whole_spec(input, spec->mesh());
    TORCH_CHECK(self.numel() > 0, "Can not infer total number of classes from empty tensor.");
    num_classes = local_of(redistribute(input, whole)).max().item<int64_t>() + 1;
  }
  LayoutDraft draft(spec->mesh()->shape(), [&] {
    Lengths shape = self.sizes().vec();
    shape.push_back(num_classes);
    return shape;
  }());
  for (int64_t d = 0; d < self.dim(); ++d) {
    draft.cut(d, spec->layout().cuts()[static_cast<size_t>(d)]);
  }
  return from_local(at::one_hot(local, num_classes), make_spec(spec->mesh(), draft.layout()));
}

const Movement kIndexSelect = {
    "any with that dimension whole; an index that is cut where the tensor is Replicate",
    "another index is gathered; along a cut dimension each row once to each rank that gets it",
    "the same rows back; where the index was cut the gradient is Partial"};
const Movement kLookup = {
    "any; an index that is cut where the tensor is Replicate or cut alike",
    "another index moves to the tensor's layout; along a cut dimension every rank looks up what it "
    "has: the result is Partial",
    "what reduces that Partial, to Replicate; each rank's rows get their gradient from it; where "
    "the index alone was cut the gradient is Partial"};

const bool kRegistered =
    OperatorFamily("indexing")
        .above_autograd("aten::index_select", &index_select, kIndexSelect)
        .above_autograd("aten::gather", &gather, kLookup)
        .above_autograd("aten::embedding", &embedding, kLookup)
        .above_autograd(
            "aten::one_hot", &one_hot,
            {"any Shard", "the indices, where the number of classes is asked of them", ""})
        .registered();

}  // namespace
}  // namespace meshrun
