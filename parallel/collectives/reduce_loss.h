// A rank's loss, summed or averaged over a group, for one rank to report.
//
//   if (const auto mean = reduce_loss(loss.item<double>())) log(*mean);   // rank 0
//
// The sum is taken in float64. `dst_rank` is a rank of the group; the other ranks get nothing.
// Blocks. In a group of one rank the result is the loss itself.
//
// Threads: any; all ranks of a group make its calls in the same order. Errors: UninitializedError
// without DistributedManager, whatever the group; a dst_rank outside the group, on every rank
// (parallel/base/collective_errors.h).
//
// Corresponds to physicsnemo.distributed.utils.reduce_loss, which rounds to float32.
#pragma once

#include <optional>

#include "parallel/base/arguments.h"
#include "parallel/manager/group_argument.h"

namespace meshrun {

std::optional<double> reduce_loss(double loss, IntArgument dst_rank = 0, BoolArgument mean = true,
                                  const GroupArgument& group = {});

}  // namespace meshrun
