// All-reduce in levels, so that as little as possible crosses between nodes: Bagua's name for what
// allreduce_inplace() does by itself. Its backend chooses: ucx adds on each node first, then
// between nodes (comm/ucx/engine/planning/two_levels.h), unless MESHRUN_REDUCTION_ORDER=rank; NCCL
// has trees of its own; Gloo has one ring.
//
// AVG is SUM, divided once by the number of members, so it is right for nodes with different
// numbers of members. On ucx f16 and bf16 travel between nodes as f32 and are rounded once, and all
// ranks get the same bits, in every run.
//
// All members of the group call it. Errors: those of allreduce_inplace().
//
// Bagua reduces to a leader, and its average of averages is wrong on nodes of different sizes.
#pragma once

#include <optional>

#include "ATen/core/Tensor.h"
#include "parallel/bagua/process_group.h"
#include "parallel/bagua/reduce_op.h"

namespace meshrun::bagua {

// `group` absent: the default process group.
void hierarchical_allreduce_inplace(const at::Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                                    const std::optional<BaguaProcessGroup>& group = std::nullopt);

}  // namespace meshrun::bagua
