#include "core/checkpoint/file_reads.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/os/files.h"
#include "core/status.h"

namespace meshrun {

absl::StatusOr<os::UniqueFd> OpenForReads(const std::string& path, uint64_t* bytes) {
  os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd && errno == ENXIO) {
    return absl::InvalidArgumentError(fmt::format("{} is not a regular file", path));
  }
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return os::ErrnoStatus(errno, path);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(fmt::format("{} is a directory", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(fmt::format("{} is not a regular file", path));
  }
  *bytes = static_cast<uint64_t>(info.st_size);
  return fd;
}

absl::StatusOr<size_t> ReadUpTo(const os::UniqueFd& fd, const std::string& path, uint64_t offset,
                                std::span<char> to) {
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t n =
        ::pread(fd.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os::ErrnoStatus(errno, path);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

absl::Status ReadAt(const os::UniqueFd& fd, const std::string& path, uint64_t offset,
                    std::span<char> to) {
  MESHRUN_ASSIGN_OR_RETURN(const size_t done, ReadUpTo(fd, path, offset, to));
  if (done == to.size()) return absl::OkStatus();
  return absl::DataLossError(fmt::format(
      "{} is truncated: it was cut to {} bytes while it was read", path, offset + done));
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, uint64_t most_bytes) {
  uint64_t bytes = 0;
  MESHRUN_ASSIGN_OR_RETURN(const os::UniqueFd fd, OpenForReads(path, &bytes));
  if (bytes > most_bytes) {
    return absl::DataLossError(
        fmt::format("{} has {} bytes, and at most {} are read", path, bytes, most_bytes));
  }
  std::string content(bytes, '\0');
  MESHRUN_RETURN_IF_ERROR(ReadAt(fd, path, 0, content));
  return content;
}

}  // namespace meshrun
