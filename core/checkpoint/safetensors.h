// The safetensors format: the header's length as a little-endian u64, the header as JSON ({"name":
// {"dtype", "shape", "data_offsets"}, "__metadata__": {...}}), the bytes of the tensors one after
// another. https://github.com/huggingface/safetensors#format
//
// Errors: see tensor_source.h. A file of torch.save() or torch.distributed.checkpoint is DATA_LOSS
// with a text that names its format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/checkpoint/tensor_source.h"

namespace meshrun {

struct SafetensorsHeader {
  struct Entry {
    TensorInfo tensor;
    uint64_t begin = 0;  // in the file
    uint64_t end = 0;
  };
  std::map<std::string, Entry> tensors;
  std::map<std::string, std::string> metadata;
  // All bytes of the file: the end of the last tensor.
  uint64_t file_bytes = 0;
};

// The layout of a file with these tensors: greater elements first, then by name, so that each
// tensor is aligned to its elements. `path` is only what errors call the file. INVALID_ARGUMENT: a
// name that is not UTF-8, an unknown dtype, an impossible shape.
absl::StatusOr<SafetensorsHeader> LayOutSafetensors(
    const std::string& path, const std::map<std::string, TensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata = {});
// The file's first bytes, up to its first tensor. For a header of LayOutSafetensors().
std::string EncodeSafetensorsHeader(const SafetensorsHeader& header);

// Where the header ends in a file of `file_bytes` bytes that begins with `first`: 8 bytes, or all
// that the file has. It is at most 100 MB, the limit of the format's own library.
absl::StatusOr<uint64_t> SafetensorsHeaderEnd(const std::string& path, std::string_view first,
                                              uint64_t file_bytes);
// The header from the file's bytes up to its end, with the checks of ReadSafetensorsHeader().
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(const std::string& path,
                                                          std::string_view content,
                                                          uint64_t file_bytes);

// Reads the header alone. Checks every offset and size against the file's length, and that tensors
// cover the data without holes or overlaps, so that a damaged file is an error, never a crash.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path);

absl::StatusOr<TensorSourcePtr> OpenSafetensors(const std::string& path);

}  // namespace meshrun
