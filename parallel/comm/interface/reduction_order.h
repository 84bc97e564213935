// MESHRUN_REDUCTION_ORDER, equal on all ranks: how backends may add.
//
//   "host"   the default: inside each host first; NCCL in its own order
//   "rank"   in rank order everywhere
//
// Threads: any. Errors: BackendError for anything else.
#pragma once

namespace meshrun {

// Whether it says "rank". Costs one look-up in the environment.
bool sums_in_rank_order();

}  // namespace meshrun
