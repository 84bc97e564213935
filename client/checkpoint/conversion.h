// Writes the tensors of any readable format into one safetensors file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun::client {

// Whether the tensor belongs to the optimizer or to what a program keeps, in a checkpoint of ours.
bool IsBesideModel(const TensorSource& source, const std::string& name);

struct ConvertOptions {
  // Also what IsBesideModel() is true of.
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
  size_t left_out = 0;  // that are beside the model
  uint64_t bytes = 0;   // of the file
};

// Memory: one block. The file appears under its name when it is whole and on the disk.
// ALREADY_EXISTS: something is there. INVALID_ARGUMENT: a name or a text that the format cannot
// hold. Others: see core/checkpoint/tensor_source.h and core/os/files.h.
absl::StatusOr<Conversion> Convert(const std::string& from, const std::string& to,
                                   const ConvertOptions& options);

}  // namespace meshrun::client
