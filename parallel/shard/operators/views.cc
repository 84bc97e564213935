// Views: the local tensor's view is the part of the global one's.
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "parallel/shard/dispatch/local_map.h"
#include "parallel/shard/dispatch/operator_table.h"

namespace meshrun {
namespace {

at::Tensor unsqueeze(const at::Tensor& self, int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  dim = at::maybe_wrap_dim(dim, self.dim() + 1);
  const SpecPtr& spec = spec_of(self);
  Placements placements = spec->placements();
  for (Placement& placement : placements) {
    if (placement.is_shard() && placement.dim() >= dim) placement = Shard(placement.dim() + 1);
  }
  std::vector<DimCut> cuts = spec->layout().cuts();
  cuts.insert(cuts.begin() + dim, DimCut{{}, {1}});
  return wrap(local_of(self).unsqueeze(dim),
              make_spec(spec->mesh(), ShardLayout::with_cuts(spec->mesh()->shape(),
                                                             std::move(placements),
                                                             std::move(cuts))));
}

const bool kRegistered =
    OperatorFamily("views")
        .below_autograd("aten::unsqueeze", &unsqueeze, {"any", "nothing", "nothing"})
        .registered();

}  // namespace
}  // namespace meshrun
