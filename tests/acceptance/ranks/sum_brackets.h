// Sums of random numbers by all_reduce and reduce_scatter, compared with an oracle that adds in the
// same order: a wrong bracket or a second rounding changes bits.
//
// The oracle adds each host's contributions in rank order, then the hosts' sums in the order of the
// hosts' first ranks; with MESHRUN_REDUCTION_ORDER=rank all contributions in rank order. It adds
// float16 and bfloat16 in float32 and rounds once; it divides a mean once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel/manager/distributed_manager.h"

namespace meshrun {

struct BracketReport {
  int64_t calls = 0;       // compared with the oracle
  int64_t told_apart = 0;  // elements of float32 that differ between the two orders
  std::string wrong;       // the last call that differs from the oracle; empty: none
};

// Collective. `hosts`: a letter for each rank, the same for ranks of one host. The caller placed
// the ranks, so a wrong table of nodes is found, too.
BracketReport check_brackets(DistributedManager& manager, std::string_view hosts);

}  // namespace meshrun
