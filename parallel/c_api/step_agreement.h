// What the ranks agree on before the backward pass of a training step: that each of them can take
// the same one, and what their losses add up to.
//
// Threads: one call at a time. Errors: CallError, on all ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/c_api/call_error.h"
#include "parallel/manager/distributed_manager.h"

namespace meshrun::c_api {

// Loss of an output: its terms' sum, and their number.
struct LossTerms {
  double sum = 0;
  double count = 0;
};

// Collective over the world. Returns the sums over the ranks, by output. Raises if a rank has a
// failure, or if the ranks' texts `step`, which say what each is about to do, or their numbers of
// outputs differ. Every first message is alike, whatever a rank knows of its model: so a rank may
// fail here before a forward pass in which others already are, and they hear of it afterwards. One
// all-reduce, and another one for more than one output.
std::vector<LossTerms> agree_on_step(DistributedManager& manager, const std::string& step,
                                     const std::vector<LossTerms>& own,
                                     const std::optional<CallError>& failure);

// Collective over the world: raises unless all ranks give the same text. `what` begins the message:
// "the steps".
void require_equal(DistributedManager& manager, const char* what, const std::string& text);

}  // namespace meshrun::c_api
