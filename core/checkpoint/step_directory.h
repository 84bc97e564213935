// A complete checkpoint, DIR/step-N, and the list of those in a directory; how they come into being
// is parallel/checkpoint's part. Errors: see tensor_source.h.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kStepPrefix[] = "step-";

struct StepDirectory {
  std::string path;
  Manifest manifest;
};

// Whether "step-" and digits.
bool IsStepName(const std::string& name);
// The number behind "step-".
int64_t StepInName(const std::string& name);

// DATA_LOSS without a readable manifest.json.
absl::StatusOr<StepDirectory> ReadStepDirectory(const std::string& path);

// The complete checkpoints in `directory`, the newest last; none if it does not exist. A step-N
// without manifest.json is not complete. One whose manifest cannot be read is an error, or left
// out where `tolerant`.
absl::StatusOr<std::vector<StepDirectory>> ListStepDirectories(const std::string& directory,
                                                               bool tolerant = false);

// Names of the directories step-N in `directory` without manifest.json, in the order of N.
std::vector<std::string> IncompleteSteps(const std::string& directory);
// What a reader says that takes the checkpoint of step `taken`, or none, and passes over one of
// these; empty where that is older: "step-40 has no manifest.json, so it is not a whole checkpoint;
// step-30 is taken".
std::string PassedOver(const std::string& incomplete, std::optional<int64_t> taken);

// Files of a checkpoint of several hosts that are not here, and of whose host no file is: each host
// has its own, "model-00002-of-00003.safetensors" and so on. None if no file at all is here.
std::set<std::string> FilesOfOtherHosts(const StepDirectory& checkpoint);

// All tensors of its files: those of model.safetensors under their names, those of
// optimizer.safetensors and kept.safetensors as "optimizer/<name>" and "kept/<name>". A file of one
// host or rank counts by its name up to the first "." or "-". Pieces are read as the tensor that
// they are of. Hosts that share no file system may store the same: one of them is read. Files of
// other hosts may be missing where those that are here have all tensors. What is read is compared
// with the hashes of the manifest first.
absl::StatusOr<TensorSourcePtr> OpenStepDirectory(const std::string& path,
                                                  StepFiles files = StepFiles::kAll);

}  // namespace meshrun
