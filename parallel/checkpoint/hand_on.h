// The state of a training run from one rank, or from files, to all: the model, the optimizer with
// its options, the values that the program keeps.
//
// Collective over the group. Errors: those of its collectives; DamagedCheckpoint where two versions
// of meshrun meet; Mismatch, the same on every rank,
//   before anything is changed, where a rank's optimizer is another one or has another number of
//   groups, it keeps other names, or a tensor's name, dtype or shape differs;
//   at the end, where a `load` function of a kept value raises on a rank.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "core/checkpoint/manifest.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/kept_values.h"
#include "parallel/checkpoint/targets.h"
#include "parallel/manager/group_argument.h"

namespace meshrun::detail {

// What fills the targets of a rank. `targets`: all that this rank gets, in the same order on all
// ranks.
using FillTargets = std::function<void(std::vector<Target>& targets)>;

// `contents` is what rank `root` has, absent elsewhere; `source` is what errors call it, on every
// rank. Afterwards every rank has it in `parts`, `optimizer` and `kept`; the manifest is returned.
// Random generators are the caller's part. `fill` is called on every rank once it is known that the
// contents fit.
Manifest hand_on(const GroupArgument::Handle& group, int root,
                 const std::optional<Contents>& contents, const std::string& source,
                 const Parts& parts, torch::optim::Optimizer& optimizer, const KeptValues& kept,
                 const FillTargets& fill);

// Fills `to` with a tensor's bytes from `from` on.
using ReadTarget = std::function<void(const Target& target, uint64_t from, std::span<char> to)>;

// Fills the targets of all ranks with what `read` gives on rank `root`, where it is called in
// order. Takes the memory of two messages. Collective. What `read` raises is raised on all ranks:
// DamagedCheckpoint as such, anything else as std::runtime_error.
void broadcast_targets(const GroupArgument::Handle& group, int root, c10::Device device,
                       std::vector<Target>& targets, const ReadTarget& read);

}  // namespace meshrun::detail
