// All-reduce in levels: as little as possible crosses between nodes.
//
//   node 0   rank 0  rank 1  rank 2            1. reduce-scatter on each node: the k-th of its
//              │shard 0  │shard 1                 first K members has shard k of the node's sum
//   node 1   rank 3  rank 4                    2. all-reduce of shard k among its owners
//                                              3. all-gather on each node
//
// K is the least number of members that a node has; where nodes have more, the members beyond K
// give their part in step 1, get the result in step 3 and own nothing. Between nodes goes what an
// all-reduce among one rank per node would send, shared out over K ranks of each.
//
// AVG is SUM, divided once by the number of members: right also where nodes have unequal numbers.
// f16 and bf16 travel as f32 and are rounded once. Sums are taken node by node, so they differ from
// those of allreduce_inplace() in the last bits; all ranks have the same bits, in every run.
//
// To be called by all members of the group. A group on one node, or with one member on each, is
// reduced by allreduce_inplace(). Headers are compared over the whole group first, so a wrong call
// is an error on all ranks, as in collectives.h. Not on Gloo, which has no reduce-scatter of
// unequal parts.
//
// Bagua's: reduction to a leader, whose AVG of AVGs is wrong on unequal nodes.
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
