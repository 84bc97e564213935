// What lies at a path: the checkpoints of a directory, or the tensors of a checkpoint or a file.
// Errors: see core/checkpoint/tensor_source.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun::client {

struct CheckpointEntry {
  enum class State { kComplete, kUnfinished, kDamaged };

  std::string name;  // in the directory
  State state = State::kComplete;
  // Why it is not complete; empty: it is.
  std::string problem;
  int64_t step = 0;
  int64_t sequence = 0;
  // Unix time in seconds. A manifest of version 1 has none: then that of its file.
  int64_t written = 0;
  // What its files have on the disk, without the manifest.
  uint64_t bytes = 0;
  size_t files = 0;
  // Those that other hosts have, where hosts share no file system.
  size_t files_elsewhere = 0;
};

// Whether the path is a directory with entries of checkpoints, and not one checkpoint.
bool HoldsCheckpoints(const std::string& path);

// The newest last, and behind it those that are not complete. Files are looked at, not read: one
// that is missing or has another length makes its checkpoint damaged.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& directory);

// Which newer step-N a reader of the newest checkpoint in a directory passes over, and why: a
// sentence each. None where the path is something else.
std::vector<std::string> PassedOverIn(const std::string& path);

struct TensorListing {
  std::string format;
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, uint64_t> bytes;  // by tensor
  uint64_t total_bytes = 0;
  uint64_t total_elements = 0;
  std::map<std::string, std::string> notes;
  // Absent where the path is not a checkpoint of ours.
  std::optional<Manifest> manifest;
};
absl::StatusOr<TensorListing> ListTensors(const std::string& path);

}  // namespace meshrun::client
