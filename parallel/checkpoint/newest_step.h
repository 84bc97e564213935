// Which checkpoint all ranks load: hosts may share a directory, or each have parts of checkpoints,
// or one that others lack.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "parallel/checkpoint/step_directories.h"

namespace meshrun::detail {

struct NewestStep {
  CommittedStep committed;
  // What to do if it is damaged, as the end of a sentence.
  std::string remedy;
};

// Does a rank's part, which may take as long as a disk does. Collective; what the part raises is
// raised on all ranks.
using Together = std::function<void(const std::function<void()>& part)>;

// Whether the coordinator keeps a commit of this job in the directory. Collective over `group`.
bool has_commit(c10d::ProcessGroup& group, c10::Device device, const std::string& directory,
                const Together& together);

// The checkpoint of the job's newest commit, else the one that was written last on any host;
// absent: there is none. It has its own name afterwards wherever it lies. A newer step-N without
// manifest.json is passed over, which rank 0 says in its log. `former_file`: see CheckpointOptions.
//
// Collective over `group`. Raises what `together` does, and, the same on all ranks,
// CheckpointFileError where the job would go on from fewer steps than it has done, since no rank
// sees its newest checkpoint. Rank 0 raises Mismatch in `together` for `former_file`.
std::optional<NewestStep> find_newest(c10d::ProcessGroup& group, c10::Device device,
                                      const std::string& directory, const std::string& former_file,
                                      const Together& together);

}  // namespace meshrun::detail
