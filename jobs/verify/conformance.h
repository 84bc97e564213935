// The library's results on this site against values that are known without it: in short the suites
// of tests/parallel. On the manager's device.
#pragma once

#include "jobs/verify/stage.h"

namespace meshrun::verify {

// All-reduce, all_gather_v, reduce_scatter_v, all_to_all_v, pieces of different sizes and empty
// ones, against closed forms, exactly; and a gradient.
void check_collectives(Stage& stage);
// distributed_rfft2 and its inverse against LibTorch's own of the whole field.
void check_transforms(Stage& stage);
// Operators on sharded tensors, values and gradients, against those on the whole tensors.
void check_shards(Stage& stage);

}  // namespace meshrun::verify
