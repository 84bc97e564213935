// The directories of checkpoints on one file system: how one becomes visible as a whole, which is
// the newest, which are removed. Without LibTorch.
//
//   DIR/step-500/{model.safetensors, optimizer.safetensors, manifest.json}
//   DIR/.step-600.unfinished/...   what a crash left; never read, removed by the next write
//
// A directory belongs to one run, and one process at a time writes it. A run that starts anew in it
// replaces what is there: the newest checkpoint is the one that was written last, whatever its step.
//
// Errors: DamagedCheckpoint; std::runtime_error with the path and the system's reason.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/checkpoint/manifest.h"

namespace meshrun {

struct StepDirectory {
  std::string path;
  Manifest manifest;
};

// The complete checkpoints in `directory`, the newest last; none if it does not exist. A step-N
// without manifest.json is not complete. Raises for a manifest that cannot be read.
std::vector<StepDirectory> list_step_directories(const std::string& directory);

// The content of a file that the manifest names, after a comparison of its size and hash.
std::string read_verified(const StepDirectory& checkpoint, const std::string& name);

// Writes aside, flushes, and renames to step-N, in the place of one of that step. Fills in the
// manifest's sequence and files. Then removes the oldest until `keep` complete ones are left; one
// whose manifest cannot be read stays.
void write_step_directory(const std::string& directory, Manifest manifest,
                          const std::map<std::string, std::string>& files, int64_t keep);

}  // namespace meshrun
