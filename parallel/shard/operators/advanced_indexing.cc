// x.index({...}) with tensors of indices or masks, reading and writing. Index tensors are small:
// they are gathered. What they choose from stays where it is: a rank looks up what it has.
#include <optional>
#include <utility>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/ops/index.h"
#include "ATen/ops/index_put.h"
#include "ATen/ops/masked_fill.h"
#include "ATen/ops/masked_select.h"
#include "ATen/ops/nonzero.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/layout/layout_draft.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/operands.h"

namespace meshrun {
namespace {

using Lengths = std::vector<int64_t>;
using Indices = c10::List<std::optional<at::Tensor>>;

at::Tensor gathered(const at::Tensor& tensor, const ShardMesh::Ptr& mesh) {
  if (!is_shard_tensor(tensor)) return tensor;
  return to_local(redistribute(tensor, replicated_spec(mesh, tensor.sizes())));
}

// The tensor and its indices.
std::vector<at::Tensor> tensors_of(const at::Tensor& self, const Indices& indices) {
  std::vector<at::Tensor> all = {self};
  for (size_t i = 0; i < indices.size(); ++i) {
    const std::optional<at::Tensor> index = indices.get(i);
    if (index && index->defined()) all.push_back(*index);
  }
  return all;
}

// One entry for each dimension of the tensor; undefined where nothing is chosen.
struct Chosen {
  std::vector<at::Tensor> indices;  // int64, broadcast to one shape
  Lengths shape;                    // theirs
  DimCut cut;                       // of the first dimension of that shape; where they are cut
  int64_t position = 0;             // of that shape in the result

  bool has(int64_t dim) const { return indices[static_cast<size_t>(dim)].defined(); }
};

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// `may_be_cut`: one vector of indices keeps its cut where the tensor is Replicate. Indices may lie
// on the CPU, whatever the tensor's device.
Chosen chosen_by(const at::Tensor& self, const Indices& given, const ShardMesh::Ptr& mesh,
                 bool may_be_cut) {
  Chosen chosen;
  std::vector<at::Tensor> present;
  for (size_t i = 0; i < given.size(); ++i) {
    const std::optional<at::Tensor> entry = given.get(i);
    if (!entry || !entry->defined()) {
      chosen.indices.emplace_back();
      continue;
    }
    if (!is_mask(*entry)) {
      chosen.indices.push_back(*entry);
      present.push_back(*entry);
      continue;
    }
    const at::Tensor mask = gathered(*entry, mesh);
    for (int64_t d = 0; d < mask.dim(); ++d) {
      const auto dim = static_cast<int64_t>(chosen.indices.size()) + d;
      TORCH_CHECK_INDEX(dim < self.dim() && mask.size(d) == self.size(dim),
                        "The shape of the mask ", mask.sizes(), " at index ", d,
                        " does not match the shape of the indexed "
                        "tensor ",
                        self.sizes());
    }
    for (const at::Tensor& places : at::nonzero(mask).unbind(1)) {
      chosen.indices.push_back(places);
      present.push_back(places);
    }
  }
  TORCH_CHECK_INDEX(static_cast<int64_t>(chosen.indices.size()) <= self.dim(),
                    "too many indices for tensor of dimension ", self.dim());
  chosen.indices.resize(static_cast<size_t>(self.dim()));
  const bool keeps_cut = may_be_cut && present.size() == 1 && present[0].dim() > 0 &&
                         is_shard_tensor(present[0]) && [&] {
                           const LayoutDraft draft(spec_of(self)->layout());
                           const DimCut& cut = spec_of(present[0])->layout().cuts()[0];
                           for (const int64_t axis : cut.axes) {
                             if (!draft.placement(axis).is_replicate()) return false;
                           }
                           return !cut.axes.empty();
                         }();
  for (const at::Tensor& index : present) {
    chosen.shape = at::infer_size(chosen.shape, index.sizes());
  }
  if (keeps_cut) {
    // Cut along their first dimension alone.
    chosen.cut = spec_of(present[0])->layout().cuts()[0];
    LayoutDraft draft(mesh->shape(), chosen.shape);
    draft.cut(0, chosen.cut);
    for (at::Tensor& index : chosen.indices) {
      if (index.defined()) {
        index = to_local(redistribute(index, make_spec(mesh, draft.layout())))
                    .to(self.device(), at::kLong);
      }
    }
  } else {
    for (at::Tensor& index : chosen.indices) {
      if (!index.defined()) continue;
      index = gathered(index, mesh).to(self.device(), at::kLong).expand(chosen.shape);
    }
  }
  // Beside each other they stay where they are, else they come first.
  int64_t first = -1;
  int64_t last = -1;
  int64_t count = 0;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!chosen.has(dim)) continue;
    if (first < 0) first = dim;
    last = dim;
    ++count;
  }
  chosen.position = count > 0 && last - first + 1 == count ? first : 0;
  return chosen;
}

// The layout of self.index(chosen): Partial along axes that cut a chosen dimension.
LayoutDraft indexed(const SpecPtr& spec, const Chosen& chosen, const ShardMesh::Ptr& mesh) {
  const ShardLayout& layout = spec->layout();
  std::vector<int64_t> kept;
  Lengths shape;
  for (int64_t dim = 0; dim < layout.ndim(); ++dim) {
    if (chosen.has(dim)) continue;
    kept.push_back(dim);
    shape.push_back(layout.global_shape()[static_cast<size_t>(dim)]);
  }
  shape.insert(shape.begin() + chosen.position, chosen.shape.begin(), chosen.shape.end());
  LayoutDraft draft(mesh->shape(), shape);
  for (int64_t axis = 0; axis < mesh->ndim(); ++axis) {
    const Placement& placement = layout.placements()[static_cast<size_t>(axis)];
    if (placement.is_partial()) draft.set(axis, placement);
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    draft.cut(at < chosen.position ? at : at + static_cast<int64_t>(chosen.shape.size()),
              layout.cuts()[static_cast<size_t>(kept[i])]);
  }
  if (!chosen.cut.axes.empty()) draft.cut(chosen.position, chosen.cut);
  for (int64_t dim = 0; dim < layout.ndim(); ++dim) {
    if (!chosen.has(dim)) continue;
    for (const int64_t axis : layout.cuts()[static_cast<size_t>(dim)].axes) {
      draft.set(axis, Partial());
    }
  }
  return draft;
}

PieceOf piece_of(const SpecPtr& spec, int64_t dim) {
  const auto d = static_cast<size_t>(dim);
  return {spec->box().offsets[d], spec->box().sizes[d], spec->global_shape()[d]};
}

Indices as_list(const std::vector<at::Tensor>& indices) {
  Indices list;
  for (const at::Tensor& index : indices) {
    list.push_back(index.defined() ? std::optional<at::Tensor>(index) : std::nullopt);
  }
  return list;
}

at::Tensor index(const at::Tensor& self, const Indices& indices) {
  const std::vector<at::Tensor> tensors = tensors_of(self, indices);
  check_plain_operands(tensors, "index");
  const ShardMesh::Ptr mesh = mesh_of(tensors, "index");
  const at::Tensor from = promote(self, mesh);
  const SpecPtr& spec = spec_of(from);
  Chosen chosen = chosen_by(from, indices, mesh, true);
  const SpecPtr result = make_spec(mesh, indexed(spec, chosen, mesh).layout());
  at::Tensor local = to_local(from, partial_where_replicated(spec, result));
  at::Tensor absent;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!chosen.has(dim) || !spec->is_sharded(dim)) continue;
    const PieceOf piece = piece_of(spec, dim);
    if (piece.extent == 0) local = with_spare_row(local, dim);
    at::Tensor& own = chosen.indices[static_cast<size_t>(dim)];
    const Lookup found = lookup(own, piece, true);
    own = found.index;
    absent = absent.defined() ? absent.logical_or(found.absent) : found.absent;
  }
  at::Tensor values = at::index(local, as_list(chosen.indices));
  if (absent.defined()) {
    for (int64_t d = static_cast<int64_t>(chosen.shape.size()) + chosen.position; d < values.dim();
         ++d) {
      absent = absent.unsqueeze(-1);
    }
    values = values.masked_fill(absent, 0);
  }
  return from_local(values, result);
}

at::Tensor index_put(const at::Tensor& self, const Indices& indices, const at::Tensor& given,
                     bool accumulate) {
  const char* name = "index_put";
  // LibTorch makes a number a tensor on the CPU.
  const bool is_elsewhere = given.dim() == 0 && given.device() != self.device();
  const at::Tensor values = is_elsewhere ? given.to(self.device()) : given;
  std::vector<at::Tensor> tensors = tensors_of(self, indices);
  if (!is_shard_tensor(values)) check_plain_operands(tensors, name);
  tensors.push_back(values);
  const ShardMesh::Ptr mesh = mesh_of(tensors, name);
  at::Tensor target = promote(self, mesh);
  target = redistribute(target, without_partial(spec_of(target)));
  if (!accumulate && indices.size() == 1 && values.numel() == 1) {
    const std::optional<at::Tensor> mask = indices.get(0);
    if (mask && mask->defined() && mask->scalar_type() == at::kBool &&
        mask->sizes() == self.sizes()) {
      return at::masked_fill(target, mask->to(self.device()),
                             values.reshape({}).to(self.scalar_type()));
    }
  }
  const SpecPtr& spec = spec_of(target);
  Chosen chosen = chosen_by(target, indices, mesh, false);
  LayoutDraft draft = indexed(spec, chosen, mesh);
  draft.drop_partial();
  const SpecPtr value_spec = make_spec(mesh, draft.layout());
  const at::Tensor spread =
      redistribute(promote(values, mesh).expand(value_spec->global_shape()), value_spec);
  at::Tensor local = to_local(target);
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!chosen.has(dim) || !spec->is_sharded(dim)) continue;
    local = with_spare_row(local, dim);
    at::Tensor& own = chosen.indices[static_cast<size_t>(dim)];
    own = index_or_spare(own, piece_of(spec, dim), true);
  }
  local = at::index_put(local, as_list(chosen.indices),
                        to_local(spread, partial_where_replicated(value_spec, spec)), accumulate);
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!chosen.has(dim) || !spec->is_sharded(dim)) continue;
    local = local.narrow(dim, 0, spec->local_shape()[static_cast<size_t>(dim)]);
  }
  return from_local(local, spec);
}

at::Tensor& index_put_(at::Tensor& self, const Indices& indices, const at::Tensor& values,
                       bool accumulate) {
  return self.copy_(meshrun::index_put(self, indices, values, accumulate));
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  const ShardMesh::Ptr mesh = mesh_of({&self, &mask}, "masked_select");
  const at::Tensor from = promote(self, mesh);
  const at::Tensor values = at::masked_select(
      to_local(redistribute(from, replicated_spec(mesh, self.sizes()))), gathered(mask, mesh));
  return from_local(values, replicated_spec(mesh, values.sizes()));
}

at::Tensor nonzero(const at::Tensor& self) {
  const ShardMesh::Ptr& mesh = spec_of(self)->mesh();
  const at::Tensor places = at::nonzero(gathered(self, mesh));
  return from_local(places, replicated_spec(mesh, places.sizes()));
}

const Movement kIndex = {
    "any; one vector of indices that is cut where the tensor is Replicate",
    "other indices and masks are gathered; along a cut dimension every rank looks up what it has: "
    "the result is Partial",
    "what reduces that Partial, to Replicate; where the indices alone were cut the gradient is "
    "Partial"};
const Movement kPut = {
    "any Shard, Replicate; one mask of the tensor's shape with one value as "
    "masked_fill",
    "indices and masks are gathered; values move to the places' layout",
    "the values' gradient is Partial where a chosen dimension is cut"};
const Movement kMask = {"Replicate",
                        "tensor and mask are gathered: the result's size depends on "
                        "them",
                        "nothing; the gradient is Replicate"};

const bool kRegistered = OperatorFamily("indexing")
                             .above_autograd("aten::index.Tensor", &index, kIndex)
                             .above_autograd("aten::index_put", &index_put, kPut)
                             .above_autograd("aten::index_put_", &index_put_, kPut)
                             .above_autograd("aten::masked_select", &masked_select, kMask)
                             .above_autograd("aten::nonzero", &nonzero, kMask)
                             .registered();

}  // namespace
}  // namespace meshrun
