// What the ranks agree on before the backward pass of a training step: that each of them can take
// the same one, and what their losses add up to.
//
// Threads: one call at a time. Errors: CallError, on all ranks.
#pragma once

#include <optional>
#include <string>

#include "parallel/c_api/call_error.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::c_api {

// Collective over the world. Returns the mean of the ranks' losses. Raises if a rank has a failure,
// or if the ranks' texts `step`, which say what each is about to do, differ. All messages are alike,
// whatever a rank knows of its model: so a rank may fail here before a forward pass in which others
// already are, and they hear of it afterwards. One all-reduce.
double agree_on_step(DistributedManager& manager, const std::string& step, double own,
                     const std::optional<CallError>& failure);

// Collective over the world: raises unless all ranks give the same text. `what` begins the message:
// "the steps".
void require_equal(DistributedManager& manager, const char* what, const std::string& text);

}  // namespace meshrun::c_api
