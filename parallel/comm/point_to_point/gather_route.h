// By which of c10d's calls all ranks' pieces get to all ranks, where the backend groups calls
// (NCCL).
//
//   equal pieces       one all-gather
//   nearly equal ones  P - 1 sends and receives: every rank sends its piece to each other one
//   the rest           one broadcast of each rank's piece. A rank with a large piece would send it
//                      P - 1 times; a broadcast passes it on from rank to rank
//
// A pure function of the sizes, which all ranks have alike: ranks that chose differently would wait
// for each other for ever. Without LibTorch.
#pragma once

#include <cstdint>
#include <span>

namespace meshrun {

enum class GatherRoute : uint8_t { kSends, kAllGather, kBroadcasts };

// `sizes`: of the ranks' pieces, none negative.
GatherRoute choose_gather_route(std::span<const int64_t> sizes);

}  // namespace meshrun
