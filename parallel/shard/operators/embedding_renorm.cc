// Rows of a table that are looked up, made no longer than a norm, in place: what embedding and
// embedding_bag do to their table where they are given a max_norm.
#include <tuple>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/_unique2.h"
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"
#include "parallel/shard/dispatch/write_back.h"
#include "parallel/shard/operators/lookup.h"
#include "parallel/shard/operators/operands.h"
#include "parallel/shard/operators/reduced.h"

namespace meshrun {
namespace {

using at::Tensor;

// Norms of these rows of a table, of which this rank may have some columns.
Tensor norms_of_rows(const Tensor& rows, const SpecPtr& spec, double norm_type) {
  Tensor own = rows.size(1) > 0 ? at::linalg_vector_norm(rows, norm_type, {1})
                                : at::zeros({rows.size(0)}, rows.options());
  return combined(std::move(own), spec, {1}, [&](const Tensor& all) {
    return norm_type == 0 ? at::sum(all, 0) : at::linalg_vector_norm(all, norm_type, {0});
  });
}

Tensor& embedding_renorm(Tensor& self, const Tensor& indices, double max_norm, double norm_type) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const ShardMesh::Ptr mesh = mesh_of({&self, &indices}, "embedding_renorm_");
  TORCH_CHECK(self.dim() == 2, "embedding_renorm_: expected a 2-dimensional tensor, but got ",
              self.sizes());
  TORCH_CHECK(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
              "embedding_renorm_: expected indices of Long or Int, but got ",
              indices.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(norm_type >= 0,
                              "embedding_renorm_ of sharded tensors with a norm of ", norm_type);
  const Tensor chosen = local_as(indices, replicated_spec(mesh, indices.sizes()));
  const SpecPtr spec = without_partial(spec_on(self, mesh));
  const Tensor local = local_as(self, spec);
  const PieceOf piece = {spec->box().offsets[0], spec->box().sizes[0], spec->global_shape()[0]};
  const Lookup found = lookup(chosen.to(at::kLong).reshape({-1}), piece, /*wraps=*/false);
  const Tensor rows =
      std::get<0>(at::_unique2(found.index.masked_select(found.absent.logical_not())));
  const Tensor values = local.index_select(0, rows);
  const Tensor norms = norms_of_rows(values, spec, norm_type).to(at::kDouble);
  const Tensor scale = at::where(norms > max_norm, max_norm / (norms + 1e-7), at::ones_like(norms));
  // The memory of `self` where that is not Partial.
  local.index_copy_(0, rows, values * scale.unsqueeze(1).to(values.scalar_type()));
  if (is_shard_tensor(self) && spec_of(self)->has_partial()) write_back(self, local, spec);
  return self;
}

const bool kRegistered =
    OperatorFamily("indexing")
        .below_autograd("aten::embedding_renorm_", &embedding_renorm,
                        {"any Shard, Replicate, with indices that are whole",
                         "indices that are cut are gathered, a Partial is reduced; one norm a row "
                         "of each rank that has some of its columns",
                         ""})
        .registered();

}  // namespace
}  // namespace meshrun
