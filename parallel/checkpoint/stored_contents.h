// Whether a checkpoint fits a run: what its files store, put together, and compared with the run's
// identity, tensors, optimizer and kept values. No files are read here.
#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "core/checkpoint/step_directory.h"
#include "parallel/checkpoint/contents.h"
#include "parallel/checkpoint/kept_values.h"

namespace meshrun::detail {

// What the files store that some rank sees, by file.
using OutlinesByFile = std::map<std::string, Outline>;

// Contents of a checkpoint. Raises Mismatch with both sides; std::runtime_error with the host whose
// part is missing; DamagedCheckpoint where pieces of a tensor do not fit together.
Contents contents_of(const StepDirectory& checkpoint, const OutlinesByFile& stored,
                     const std::map<std::string, std::string>& identity, const Parts& parts,
                     const torch::optim::Optimizer& optimizer, const KeptValues& kept);

}  // namespace meshrun::detail
