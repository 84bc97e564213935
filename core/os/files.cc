#include "core/os/files.h"

#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/os/fd.h"
#include "core/os/write_all.h"

namespace meshrun::os {
namespace {

// The status of errno. Removes the file.
absl::Status Abandon(const std::string& temporary) {
  const absl::Status status = ErrnoStatus(errno, temporary);
  ::unlink(temporary.c_str());
  return status;
}

// `file`: `temporary`, open. Closed before the rename.
absl::Status Publish(UniqueFd file, const std::string& temporary, const std::string& path,
                     bool sync) {
  if (sync && ::fsync(file.get()) != 0) return Abandon(temporary);
  file.reset();
  if (::rename(temporary.c_str(), path.c_str()) != 0) return Abandon(temporary);
  if (!sync) return absl::OkStatus();
  // A rename must reach the disk, too.
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

absl::StatusOr<std::string> ReadToEnd(const UniqueFd& fd, const std::string& path,
                                      size_t most_bytes) {
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof(buffer));
    if (n == 0) return content;
    if (n > 0 && content.size() + n > most_bytes) {
      return absl::ResourceExhaustedError(
          fmt::format("{} has more than {} bytes", path, most_bytes));
    }
    if (n > 0) {
      content.append(buffer, n);
    } else if (errno != EINTR) {
      return ErrnoStatus(errno, path);
    }
  }
}

}  // namespace

absl::Status ErrnoStatus(int error, std::string_view what) {
  absl::StatusCode code = absl::StatusCode::kInternal;
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      code = absl::StatusCode::kNotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = absl::StatusCode::kPermissionDenied;
      break;
    case ENOSPC:
    case EDQUOT:
      code = absl::StatusCode::kResourceExhausted;
      break;
    default:
      break;
  }
  return absl::Status(code, fmt::format("{}: {}", what, std::strerror(error)));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return ErrnoStatus(errno, path);
  return ReadToEnd(fd, path, SIZE_MAX);
}

absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info = {};
  const bool opened = fd && ::fstat(fd.get(), &info) == 0;
  if (opened && S_ISREG(info.st_mode)) return fd;
  // ENXIO: a socket.
  if (opened || errno == ELOOP || errno == ENXIO) {
    return absl::FailedPreconditionError(fmt::format("{} is not a regular file", path));
  }
  return ErrnoStatus(errno, path);
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes) {
  const auto fd = OpenRegularFile(path);
  return fd.ok() ? ReadToEnd(*fd, path, most_bytes) : fd.status();
}

namespace {

// A device, a pipe or a socket.
bool IsSpecial(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path, std::string_view content, int mode,
                                 bool sync) {
  if (IsSpecial(path)) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd && WriteAll(fd.get(), content) ? absl::OkStatus() : ErrnoStatus(errno, path);
  }
  const std::string temporary = fmt::format("{}.{}.new", path, ::getpid());
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd) return ErrnoStatus(errno, temporary);
  if (!WriteAll(fd.get(), content)) return Abandon(temporary);
  return Publish(std::move(fd), temporary, path, sync);
}

absl::Status SyncDirectory(const std::string& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) return ErrnoStatus(errno, directory);
  return absl::OkStatus();
}

absl::Status PublishFile(const std::string& temporary, const std::string& path) {
  UniqueFd fd(::open(temporary.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return Abandon(temporary);
  return Publish(std::move(fd), temporary, path, /*sync=*/true);
}

absl::Status MakeDirectories(const std::string& path, int mode) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return absl::OkStatus();
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  // Another process may remove the parent as long as it is empty. The limit is a time, not a number
  // of tries: a process that removes in a loop has undone a hundred tries in a row.
  constexpr absl::Duration kLongest = absl::Seconds(2);
  for (const absl::Time deadline = absl::Now() + kLongest;;) {
    if (!parent.empty() && parent != path) {
      if (absl::Status status = MakeDirectories(parent.string(), mode); !status.ok()) return status;
    }
    if (::mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return absl::OkStatus();
    if (errno != ENOENT || absl::Now() > deadline) return ErrnoStatus(errno, path);
  }
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? ErrnoStatus(error.value(), path) : absl::OkStatus();
}

absl::Status CheckSocketPath(const std::string& path, std::string_view remedy) {
  static_assert(kLongestSocketPath == sizeof(sockaddr_un::sun_path) - 1);
  if (path.empty()) return absl::InvalidArgumentError("a socket's path is empty");
  if (path.size() <= kLongestSocketPath) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("socket path {} has {} bytes, and the system allows {}: {}", path, path.size(),
                  kLongestSocketPath, remedy));
}

}  // namespace meshrun::os
