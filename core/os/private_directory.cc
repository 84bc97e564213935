#include "core/os/private_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::os {

absl::Status CheckPrivateDirectory(const std::string& path) {
  struct stat info;
  // Not stat(): a link could be turned to another directory at any time.
  if (::lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) {
    return absl::PermissionDeniedError(
        fmt::format("{} is not a directory: remove it, or choose another", path));
  }
  if (info.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(
        fmt::format("directory {} belongs to user {}, and this process runs as user {}: choose "
                    "another directory",
                    path, info.st_uid, ::geteuid()));
  }
  if ((info.st_mode & S_ISVTX) != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "directory {} is for all users (mode {:04o}): choose a directory of your own, for example "
        "in it",
        path, info.st_mode & 07777));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        fmt::format("directory {} is open to other users (mode {:04o}): run 'chmod 700 {}', or "
                    "choose another directory",
                    path, info.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

absl::Status MakePrivateDirectory(const std::string& path) {
  MESHRUN_RETURN_IF_ERROR(MakeDirectories(path, 0700));
  return CheckPrivateDirectory(path);
}

absl::Status CheckOwnDirectory(const std::string& path) {
  struct stat info;
  if (::lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 022) != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "{} is not a directory of this user's that others cannot write: remove it", path));
  }
  return absl::OkStatus();
}

absl::Status MakePassableDirectory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, path);
  MESHRUN_RETURN_IF_ERROR(CheckOwnDirectory(path));
  // Whatever the umask is.
  if (::chmod(path.c_str(), 0711) != 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

}  // namespace meshrun::os
