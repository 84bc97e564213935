// A rank's loss, summed or averaged over a group, for one rank to report.
//
//   if (const auto mean = reduce_loss(loss.item<double>())) log(*mean);   // rank 0
//
// In float64, whatever the loss was computed in. `dst_rank` is a rank of the group; the other ranks
// get nothing. Blocks. A group of one rank: the loss itself.
//
// Threads: any; the calls of one group in the same order on all its ranks. Errors:
// UninitializedError without DistributedManager, whatever the group; a dst_rank outside the group,
// on every rank (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.distributed.utils.reduce_loss, which rounds to float32.
#pragma once

#include <optional>

#include "parallel/collectives/group_argument.h"

namespace meshrun {

std::optional<double> reduce_loss(double loss, int dst_rank = 0, bool mean = true,
                                  const GroupArgument& group = {});

}  // namespace meshrun
