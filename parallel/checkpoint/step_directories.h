// The directories of checkpoints on one file system: how one becomes visible as a whole, which is
// the newest, which are removed. Without LibTorch.
//
//   DIR/step-500/{model.safetensors, optimizer.safetensors, manifest.json}
//   DIR/.step-600.node-a.3.unfinished/...   written by node-a in generation 3, and not, or not yet,
//                                           a checkpoint. Removed by a writer of its own or a later
//                                           generation, or, if it was committed, finished
//
// A directory belongs to one run, and one process at a time may write it. What the writer has
// written aside becomes a checkpoint only after `commit`. A run that starts anew in the directory
// replaces what is there: the newest checkpoint is the one that was written last, whatever its
// step.
//
// Errors: DamagedCheckpoint; std::runtime_error with the path and the system's reason.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/os/files.h"
#include "parallel/checkpoint/manifest.h"

namespace meshrun {

// Another writer holds the right to write checkpoints.
class CommitRefused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The writer, and what makes the result a checkpoint.
struct StepWriter {
  // Part of the temporary name.
  std::string name;
  uint64_t generation = 0;
  // Called when all is on the disk, with the step, the SHA-256 of the manifest and the temporary
  // name. Raises CommitRefused. The files stay even then, because the first try may have been
  // committed: if its answer was lost with the coordinator, the second try is refused once its
  // generation is over.
  std::function<void(int64_t step, const std::string& digest, const std::string& temporary)> commit;
  // Brings the names in a directory to the disk: os::SyncDirectory. Tests look at that moment.
  std::function<absl::Status(const std::string& directory)> flush = os::SyncDirectory;
};

struct StepDirectory {
  std::string path;
  Manifest manifest;
};

// The complete checkpoints in `directory`, the newest last; none if it does not exist. A step-N
// without manifest.json is not complete. Raises for a manifest that cannot be read.
std::vector<StepDirectory> list_step_directories(const std::string& directory);

// The content of a file that the manifest names, after a comparison of its size and hash.
std::string read_verified(const StepDirectory& checkpoint, const std::string& name);

// Writes aside, flushes, and renames to step-N, in the place of one of that step, which is removed
// only when the new one's name is on the disk. Fills in the manifest's files, and its sequence: at
// least what it is, and above those that are there. Then removes the oldest until `keep` complete
// ones are left; one whose manifest cannot be read stays. Returns the sequence.
int64_t write_step_directory(const std::string& directory, Manifest manifest,
                             const std::map<std::string, std::string>& files, int64_t keep,
                             const StepWriter& writer);

// Renames the checkpoint of `step` that was committed as `temporary`, if its writer ended before it
// could. Returns whether it is there under its own name now. If not, it lies on another host, or
// was removed or replaced.
bool finish_step_directory(const std::string& directory, int64_t step, const std::string& digest,
                           const std::string& temporary);

}  // namespace meshrun
