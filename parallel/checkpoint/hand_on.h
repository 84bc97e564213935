// The state of a training run from one rank to all: the model, the optimizer with its options, the
// values that the program keeps.
//
// Collective over the group. Errors: those of its collectives; DamagedCheckpoint where two versions
// of meshrun meet; Mismatch, the same on every rank,
//   before anything is changed, where a rank's optimizer is another one or has another number of
//   groups, it keeps other names, or a tensor's name, dtype or shape differs;
//   at the end, where a `load` function of a kept value raises on a rank.
#pragma once

#include <torch/optim/optimizer.h>

#include <optional>
#include <string>

#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/manager/group_argument.h"

namespace meshrun::detail {

// `loaded` is what rank `root` has, absent elsewhere; `source` is what errors call it, on every
// rank. Afterwards every rank has it in `parts`, `optimizer` and `kept`; the manifest is returned.
// Random generators are the caller's part.
Manifest hand_on(const GroupArgument::Handle& group, int root, const std::optional<Loaded>& loaded,
                 const std::string& source, const Parts& parts, torch::optim::Optimizer& optimizer,
                 const KeptValues& kept);

}  // namespace meshrun::detail
