// Questions to a whole tensor whose answer all ranks need: item(), equal(), allclose().
#include "ATen/Functions.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "parallel/collectives/all_reduce.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"
#include "parallel/shard/dispatch/same_mesh.h"

namespace meshrun {
namespace {

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const SpecPtr& spec = spec_of(self);
  return at::_local_scalar_dense(redistribute_local(
      local_of(self), spec, replicated_spec(spec->mesh(), spec->global_shape())));
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  if (self.sizes() != other.sizes()) return false;
  const ShardMesh::Ptr mesh = mesh_of({&self, &other}, "equal");
  const at::Tensor a = promote(self, mesh);
  const at::Tensor b = promote(other, mesh);
  const SpecPtr spec = without_partial(spec_of(a));
  const bool own = at::equal(redistribute_local(local_of(a), spec_of(a), spec),
                             redistribute_local(local_of(b), spec_of(b), spec));
  const at::Tensor all = at::full({1}, own ? 1 : 0, local_of(a).options().dtype(at::kInt));
  // Replicas might differ, and all ranks have to answer alike.
  detail::all_reduce(mesh->group(), all, c10d::ReduceOp::MIN).wait();
  return all.item<int32_t>() == 1;
}

bool allclose(const at::Tensor& self, const at::Tensor& other, double rtol, double atol,
              bool equal_nan) {
  return at::isclose(self, other, rtol, atol, equal_nan).all().item<bool>();
}

const Movement kAsked = {"Replicate", "a scalar that is Partial is reduced", ""};
const Movement kAnswer = {"two tensors of one layout", "the second one; one number", ""};

const bool kRegistered =
    OperatorFamily("reductions")
        .below_autograd("aten::_local_scalar_dense", &local_scalar_dense, kAsked)
        .below_autograd("aten::equal", &equal, kAnswer)
        .above_autograd("aten::allclose", &allclose, kAnswer)
        .registered();

}  // namespace
}  // namespace meshrun
