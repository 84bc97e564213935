// Writes the tensors of any readable format into one safetensors file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun::client {

struct ConvertOptions {
  // Takes a checkpoint's optimizer and kept values, too. Else their files are not read.
  bool all = false;
  // Replaces a file that is there.
  bool force = false;
  // Called with the name of the unfinished file, for those who remove it when they are stopped.
  // Empty: there is none any more.
  std::function<void(const std::string& path)> unfinished = {};
  // Called for each block.
  std::function<void(uint64_t done, uint64_t all)> progress = {};
};

struct Conversion {
  std::string format;  // what it was
  size_t tensors = 0;
  uint64_t bytes = 0;  // of the file
  // Files of a checkpoint beside its model, which were not read.
  std::vector<std::string> left_out;
};

// Memory: one block. The file appears under its name when it is whole and on the disk.
// ALREADY_EXISTS: something is there. INVALID_ARGUMENT: a name or a text that the format cannot
// hold. Others: see core/checkpoint/tensor_source.h and core/os/files.h.
absl::StatusOr<Conversion> Convert(const std::string& from, const std::string& to,
                                   const ConvertOptions& options);

}  // namespace meshrun::client
