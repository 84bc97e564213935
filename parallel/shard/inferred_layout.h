// The layout that the parts of all ranks make: from_local() infers it where the caller gives none.
//
// Internal to parallel/shard. All ranks of the mesh call it, and wait for one small all-gather.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "parallel/shard/layout/shard_layout.h"
#include "parallel/shard/tensor/shard_mesh.h"

namespace meshrun {

// Raises ShardLayoutError, the same on all ranks: a local tensor that is undefined or sharded on
// any of them, ranks that disagree on dtype, number of dimensions, placements or grad_placements,
// parts that do not make a grid, a global shape that any rank gives and the parts do not make.
ShardLayout inferred_layout(const at::Tensor& local, const ShardMesh& mesh,
                            const Placements& placements,
                            const std::optional<std::vector<int64_t>>& global_shape,
                            const std::optional<Placements>& grad_placements);

}  // namespace meshrun
