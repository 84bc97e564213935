// All-reduce in levels, so that as little as possible crosses between nodes.
//
//   node 0   rank 0  rank 1  rank 2            1. reduce-scatter on each node: the k-th of its
//              │shard 0  │shard 1                 first K members has shard k of the node's sum
//   node 1   rank 3  rank 4                    2. all-reduce of shard k among its owners
//                                              3. all-gather on each node
//
// K is the smallest number of members on a node. On a larger node the members beyond K give their
// part in step 1, get the result in step 3 and own no shard. Between nodes K ranks of each node
// together send what an all-reduce among one rank per node would send.
//
// AVG is SUM, divided once by the number of members, so it is right for nodes with different
// numbers of members. f16 and bf16 travel as f32 and are rounded once. Sums are taken node by node,
// so they differ from those of allreduce_inplace() in the last bits; all ranks get the same bits,
// in every run.
//
// All members of the group call it. A group on one node, or with one member per node, is reduced by
// allreduce_inplace(). Headers are compared over the whole group first, so a wrong call is an error
// on all ranks, as in collectives.h. Not on Gloo, which has no reduce-scatter of unequal parts.
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
