// Unix sockets at our own paths. All are non-blocking and closed on exec. Errors carry the path.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun::worker {

// A socket left at `path` by a process that is gone is replaced.
absl::StatusOr<os::UniqueFd> ListenUnix(const std::string& path, int backlog = 8);
absl::StatusOr<os::UniqueFd> BindDatagrams(const std::string& path);

// NOT_FOUND when nobody listens at `path`.
absl::StatusOr<os::UniqueFd> ConnectUnix(const std::string& path);

// Makes a socket another user's alone. Its directory must be one that nobody else can write: the
// name is then the socket that was bound.
absl::Status GiveSocket(const std::string& path, uid_t uid, gid_t gid);

}  // namespace meshrun::worker
