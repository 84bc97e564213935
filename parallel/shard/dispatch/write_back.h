// What an operator in place does when it computed its result elsewhere: the target keeps its layout
// and its memory, so views of it, and what it is a view of, see the new values.
//
// Internal to parallel/shard, without autograd. All ranks of the mesh call alike.
#pragma once

#include "ATen/core/Tensor.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

// `value` is the local tensor of one with the layout `from`, of the target's global shape. Where
// the target is Partial and `from` is not, one rank along each axis takes the values, and the
// others take values that do not change the reduction.
void write_back(const at::Tensor& target, const at::Tensor& value, const SpecPtr& from);

}  // namespace meshrun
