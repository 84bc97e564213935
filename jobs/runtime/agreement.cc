#include "jobs/runtime/agreement.h"

#include <ATen/Functions.h>

#include "jobs/runtime/all_reduce.h"
#include "jobs/runtime/stop.h"

namespace meshrun::jobs {

Agreement agree(c10d::ProcessGroup& group, const at::Tensor& loss) {
  const at::Tensor stop = at::full_like(loss, stop_requested() ? 1 : 0);
  const at::Tensor sums = all_reduced(group, loss.device(), at::stack({loss.detach(), stop}));
  return {sums[0].item<double>() / group.getSize(), sums[1].item<double>() > 0};
}

}  // namespace meshrun::jobs
