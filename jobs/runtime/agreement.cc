#include "jobs/runtime/agreement.h"

#include <ATen/Functions.h>

#include <vector>

#include "jobs/runtime/stop.h"

namespace meshrun::jobs {

Agreement agree(c10d::ProcessGroup& group, const at::Tensor& loss) {
  const at::Tensor stop = at::full_like(loss, stop_requested() ? 1 : 0);
  std::vector<at::Tensor> sums = {at::stack({loss.detach(), stop})};
  group.allreduce(sums)->wait();
  const at::Tensor values = sums[0].cpu();
  return {values[0].item<double>() / group.getSize(), values[1].item<double>() > 0};
}

}  // namespace meshrun::jobs
