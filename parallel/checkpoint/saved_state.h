// A training at one moment, as all ranks agree on it: what a checkpoint or a snapshot holds.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/checkpoint/manifest.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/file_tensors.h"
#include "parallel/checkpoint/kept_values.h"

namespace meshrun::detail {

struct SavedState {
  // Without what belongs to files.
  Manifest manifest;
  FileTensors tensors;
  // agree_on()
  std::string differing = {};
};

// Collective over `group`. Errors, the same on all ranks: those of agree_on(); c10::ValueError
// where ranks have done other steps or keep other values; CheckpointFileError where the `save`
// function of a kept value raises, or where another rank has a dtype that files cannot hold, which
// is a c10::TypeError there.
SavedState saved_state(c10d::ProcessGroup& group, const Parts& parts,
                       torch::optim::Optimizer& optimizer, const TrainingProgress& progress,
                       const KeptValues& kept);

}  // namespace meshrun::detail
