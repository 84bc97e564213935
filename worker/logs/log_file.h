// A rank's output file. Some of its bytes may be gone (supervisor/output_copier.h): the oldest, and
// bytes for which the disk had no room. Such bytes are holes in the file.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::worker {

class LogFile {
 public:
  // Errors: those of os::OpenRegularFile. A rank controls what is there.
  static absl::StatusOr<LogFile> Open(const std::string& path);

  // Bytes, those that are gone included.
  uint64_t Size() const;
  // At or after `offset`, the first byte that is there; the file's size when none is.
  uint64_t FirstKept(uint64_t offset) const;
  // Reads up to `most` bytes. Moves `*offset` to the first byte that is there, and stops at the
  // next hole. Empty at the end. Bytes that go while they are read are never returned as zeros.
  absl::StatusOr<std::string> Read(uint64_t* offset, size_t most) const;

 private:
  explicit LogFile(os::UniqueFd file) : file_(std::move(file)) {}
  os::UniqueFd file_;
};

}  // namespace meshrun::worker
