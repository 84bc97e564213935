// Directories that only this user can enter: where sockets and state lie.
//
// Errors: PERMISSION_DENIED says whose the directory is or how wide its mode is, and what to do;
// others as the system says. A directory that exists is never changed: `chmod` on what somebody
// named by mistake (/tmp, a home) would lock its users out.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace meshrun::os {

// `path` must be a directory (not a link to one) of this user, closed to everybody else (0700 or
// less). NOT_FOUND when there is none.
absl::Status CheckPrivateDirectory(const std::string& path);

// Makes it, and what is missing above it, with mode 0700; then CheckPrivateDirectory.
absl::Status MakePrivateDirectory(const std::string& path);

// `path` must be a directory of this user's that other users cannot write.
absl::Status CheckOwnDirectory(const std::string& path);

// Makes a directory that other users may pass through, when they know what lies in it, and neither
// list nor write (0711). One that is there must pass CheckOwnDirectory.
absl::Status MakePassableDirectory(const std::string& path);

}  // namespace meshrun::os
