// Reads at offsets of files that may be larger than memory. Errors: see tensor_source.h.
//
// Threads: ReadAt() from any, several at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun {

// Follows links, and waits for nobody. INVALID_ARGUMENT: a directory, a pipe, a device. `bytes`
// becomes the file's length.
absl::StatusOr<os::UniqueFd> OpenForReads(const std::string& path, uint64_t* bytes);

// Fills `to`, or as much of it as the file has. Returns how much that is.
absl::StatusOr<size_t> ReadUpTo(const os::UniqueFd& fd, const std::string& path, uint64_t offset,
                                std::span<char> to);
// Fills `to`. DATA_LOSS: the file ends before, although it was longer when it was opened.
absl::Status ReadAt(const os::UniqueFd& fd, const std::string& path, uint64_t offset,
                    std::span<char> to);

// The whole file. DATA_LOSS: it has more than `most_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t most_bytes);

}  // namespace meshrun
