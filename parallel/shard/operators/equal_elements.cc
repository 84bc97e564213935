#include "parallel/shard/operators/equal_elements.h"

#include "ATen/TensorOperators.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "parallel/shard/operators/moments.h"

namespace meshrun {

// reduced.cc: a value that all ranks along the axes have, for each rank's own part of a
// computation. Its gradient is the sum of theirs.
at::Tensor on_each_rank(const at::Tensor& value, const ShardMesh::Ptr& mesh,
                        const std::vector<int64_t>& axes);

at::Tensor is_at(const at::Tensor& elements, const at::Tensor& value) {
  const at::Tensor equal = elements == value;
  return at::isFloatingType(value.scalar_type())
             ? equal.logical_or(elements.isnan().logical_and(value.isnan()))
             : equal;
}

at::Tensor shared_among_equal(const at::Tensor& gradient, const at::Tensor& elements,
                              const at::Tensor& value, const SpecPtr& spec,
                              const std::vector<int64_t>& dims) {
  const std::vector<int64_t> axes = axes_that_cut(*spec, dims);
  const at::Tensor mask = is_at(elements, value);
  const bool keeps_dims = value.dim() == elements.dim();
  const at::Tensor own = dims.empty() ? mask.to(at::kLong) : at::sum(mask, dims, keeps_dims);
  const at::Tensor count = sum_over(own.contiguous(), *spec->mesh(), axes);
  const at::Tensor share = on_each_rank(gradient, spec->mesh(), axes) / count;
  return at::where(mask, share, at::zeros({}, share.options()));
}

}  // namespace meshrun
