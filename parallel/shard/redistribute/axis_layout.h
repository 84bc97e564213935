// A layout seen along single axes of the mesh: what it becomes where one axis changes, and which
// ranks have the same pieces.
//
// Pure, without LibTorch. Internal to redistribute/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/shard/layout/shard_layout.h"

namespace meshrun {

// `present` with the placement and the pieces that `to` has on `axis`; absent where that would move
// data between ranks beyond that axis, or to ranks that are not neighbours in order.
std::optional<ShardLayout> placed(const ShardLayout& present, const ShardLayout& to, size_t axis);

// Replicate on the axes of one rank: there a placement says nothing.
ShardLayout without_axes_of_one(const ShardLayout& layout);

// Whether the two ranks share their coordinates on all axes that do not cut `layout`.
bool share_copies(const ShardLayout& layout, const std::vector<int64_t>& a,
                  const std::vector<int64_t>& b);

}  // namespace meshrun
