#include "parallel/shard/dispatch/write_back.h"

#include <algorithm>
#include <utility>

#include "parallel/shard/redistribute/redistribute.h"
#include "parallel/shard/tensor/shard_tensor_impl.h"

namespace meshrun {

void write_back(const at::Tensor& target, const at::Tensor& value, const SpecPtr& from) {
  const SpecPtr& spec = spec_of(target);
  Placements placements = spec->placements();
  bool takes_values = true;
  bool is_factor = false;
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement placement = placements[axis];
    if (!placement.is_partial() || from->placements()[axis] == placement) continue;
    const bool is_first =
        spec->mesh()->coordinate()[axis] == std::max<int64_t>(placement.holder(), 0);
    if (!is_first && placement.op() == PartialOp::kSum) takes_values = false;
    if (!is_first && placement.op() == PartialOp::kProduct) is_factor = true;
    placements[axis] = Replicate();
  }
  const at::Tensor& local = local_of(target);
  const at::Tensor moved =
      redistribute_local(value, from,
                         placements == spec->placements()
                             ? spec
                             : make_spec(spec->mesh(), spec->layout().with_placements(placements)));
  if (!takes_values) {
    local.zero_();
  } else if (is_factor) {
    local.fill_(1);
  } else if (!local.is_same(moved)) {
    local.copy_(moved);
  }
}

}  // namespace meshrun
