// Files, whole. Errors carry the path and the system's reason; codes: NOT_FOUND, PERMISSION_DENIED,
// RESOURCE_EXHAUSTED (disk full), else INTERNAL.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::os {

// `error` as a status: "<what>: <strerror>".
absl::Status ErrnoStatus(int error, std::string_view what);

absl::StatusOr<std::string> ReadFile(const std::string& path);

// For files that somebody else controls (a rank): opened for reading without following a link at
// that name, and without waiting, as the open of a pipe does. FAILED_PRECONDITION: a link, a pipe,
// a device, anything but a regular file.
absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path);
// All of it. RESOURCE_EXHAUSTED: it has more than `most_bytes`.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes);
// Writes a file beside `path`, syncs it, renames it, and syncs the directory. A reader sees the old
// content or the new one, even after the host has failed. What is not a file, such as /dev/null, is
// written to and stays what it is. Without `sync` the file may be lost when
// the host fails, which is acceptable for files that describe running processes.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content, int mode = 0644,
                                 bool sync = true);
// Syncs a directory: what was created or renamed in it stays, even after the host has failed.
absl::Status SyncDirectory(const std::string& directory);
// The end of an atomic write, for a finished file that a library has written beside `path`: syncs
// `temporary`, renames it, and syncs the directory. If the first or the second fails, it removes
// `temporary`.
absl::Status PublishFile(const std::string& temporary, const std::string& path);
// mkdir -p. Goes on where others remove the directories while they are empty.
absl::Status MakeDirectories(const std::string& path, int mode = 0755);
// rm -rf of what is below a directory of ours. No error when it does not exist.
absl::Status RemoveTree(const std::string& path);

// What sockaddr_un holds, without its final zero.
inline constexpr size_t kLongestSocketPath = 107;
// INVALID_ARGUMENT when a Unix socket at `path` would be longer; ends with `remedy`.
absl::Status CheckSocketPath(const std::string& path,
                             std::string_view remedy = "choose a shorter directory");

}  // namespace meshrun::os
