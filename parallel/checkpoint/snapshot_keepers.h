// Which rank keeps a copy of which other rank's pieces. Pure, without LibTorch.
#pragma once

#include <vector>

namespace meshrun {

// By rank: the one that keeps the copy of its pieces. Each keeps those of one rank. It is on
// another host for as many ranks as that is possible for: for all, unless more than half of them
// are on one host. `nodes`: the host of each rank, at least one.
std::vector<int> snapshot_keepers(const std::vector<int>& nodes);

}  // namespace meshrun
