// The state of a training run from one rank to all: the model, the optimizer, the random
// generators.
//
// Collective over the group. Errors: those of its collectives; DamagedCheckpoint where two versions
// of meshrun meet.
#pragma once

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <optional>
#include <string>

#include "parallel/checkpoint/contents.h"
#include "parallel/collectives/group_argument.h"

namespace meshrun::detail {

// Of LibTorch's default generators of the CPU and of `device`, by kind of device; bytes.
std::map<std::string, std::string> generator_states(c10::Device device);
void set_generator_states(c10::Device device, const std::map<std::string, std::string>& states);

// `loaded` is what rank `root` has, absent elsewhere. Afterwards every rank has it, in `parts` and
// in `optimizer`; the manifest is returned.
Manifest hand_on(const GroupArgument::Handle& group, int root, const std::optional<Loaded>& loaded,
                 const Parts& parts, torch::optim::Optimizer& optimizer);

}  // namespace meshrun::detail
