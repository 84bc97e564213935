#include "parallel/bagua/hierarchical.h"

#include "parallel/bagua/collectives.h"

namespace meshrun::bagua {

void hierarchical_allreduce_inplace(const at::Tensor& tensor, ReduceOp op,
                                    const std::optional<BaguaProcessGroup>& group) {
  const BaguaProcessGroup all = group ? *group : default_process_group();
  allreduce_inplace(tensor, op, all.get_global_communicator());
}

}  // namespace meshrun::bagua
