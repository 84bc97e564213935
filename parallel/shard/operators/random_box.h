// The part of a global tensor that a rank fills with random numbers.
#pragma once

#include "parallel/shard/random/counter_random.h"
#include "parallel/shard/tensor/shard_tensor_spec.h"

namespace meshrun {

// This rank's box of a tensor of layout `spec`. The box refers to `spec`, which must outlive it.
inline RandomBox box_of(const SpecPtr& spec) { return {spec->global_shape(), spec->box().offsets}; }

}  // namespace meshrun
