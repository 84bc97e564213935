// What a wrapper that treats parameters as equal on all ranks of a group (DistributedDataParallel,
// ZeroRedundancyOptimizer, mark_module_as_shared) would get wrong: parameters of which several of
// those ranks hold different pieces, and ShardTensors. Internal to parallel/nn.
//
// Nothing is sent: a rank that holds a piece finds the conflict, and find_difference()
// (module_agreement.h) tells all ranks of the group. Threads: any.
#pragma once

#include <torch/ordered_dict.h>

#include <map>
#include <string>

#include "ATen/core/Tensor.h"
#include "parallel/manager/group_argument.h"
#include "parallel/nn/sharded_parameters.h"

namespace c10d {
class ProcessGroup;
}

namespace meshrun::detail {

// Whether both groups have the same ranks, as far as their backends say which ranks they have.
bool have_same_ranks(const c10d::ProcessGroup& a, const c10d::ProcessGroup& b);

// A sentence about the first of `tensors` that does not fit the group; empty: all fit. `shards`: by
// name; a tensor that has none there may have been announced (announce_shard).
std::string find_shard_conflict(const std::map<std::string, ParameterShard>& shards,
                                const torch::OrderedDict<std::string, at::Tensor>& tensors,
                                const GroupArgument::Handle& group);

}  // namespace meshrun::detail
