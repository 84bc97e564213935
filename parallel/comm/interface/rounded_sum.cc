#include "parallel/comm/interface/rounded_sum.h"

#include <utility>
#include <vector>

#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace meshrun {

c10::intrusive_ptr<c10d::Work> all_reduce_rounded(c10d::ProcessGroup& group, at::Tensor tensor) {
  const c10::intrusive_ptr<c10d::Backend> backend = group.getBackend(tensor.device().type());
  if (auto* const its = dynamic_cast<RoundedSum*>(backend.get())) {
    return its->all_reduce_rounded(tensor);
  }
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  return group.allreduce(tensors);
}

}  // namespace meshrun
