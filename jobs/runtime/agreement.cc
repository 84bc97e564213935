#include "jobs/runtime/agreement.h"

#include <ATen/Functions.h>

#include "jobs/runtime/all_reduce.h"

namespace meshrun::jobs {

Agreement agree(c10d::ProcessGroup& group, const at::Tensor& loss, const Asked& asked) {
  const auto flag = [&](bool value) { return at::full_like(loss, value ? 1 : 0); };
  const at::Tensor sums =
      all_reduced(
          group, loss.device(),
          at::stack({loss.detach(), flag(asked.stop), flag(asked.stand_still), flag(asked.save)}))
          .cpu();
  const auto some = [&](int64_t index) { return sums[index].item<double>() > 0; };
  return {sums[0].item<double>() / group.getSize(), {some(1), some(2), some(3)}};
}

}  // namespace meshrun::jobs
