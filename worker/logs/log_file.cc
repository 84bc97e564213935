#include "worker/logs/log_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/os/files.h"
#include "core/status.h"

namespace meshrun::worker {

absl::StatusOr<LogFile> LogFile::Open(const std::string& path) {
  MESHRUN_ASSIGN_OR_RETURN(os::UniqueFd file, os::OpenRegularFile(path));
  return LogFile(std::move(file));
}

uint64_t LogFile::Size() const {
  struct stat info = {};
  return ::fstat(file_.get(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

uint64_t LogFile::FirstKept(uint64_t offset) const {
  // Asked first: what is written between the two calls is there.
  const uint64_t size = Size();
  const off_t data = ::lseek(file_.get(), static_cast<off_t>(offset), SEEK_DATA);
  if (data >= 0) return static_cast<uint64_t>(data);
  // ENXIO: nothing but a hole up to the end. Anything else: the file system knows no holes.
  return errno == ENXIO ? std::max(offset, size) : offset;
}

absl::StatusOr<std::string> LogFile::Read(uint64_t* offset, size_t most) const {
  while (true) {
    *offset = FirstKept(*offset);
    const off_t hole = ::lseek(file_.get(), static_cast<off_t>(*offset), SEEK_HOLE);
    // The end of the file, which another hole may follow.
    if (hole < 0 && errno == ENXIO) return std::string();
    size_t room = most;
    if (hole > static_cast<off_t>(*offset)) {
      room = std::min(most, static_cast<size_t>(hole) - *offset);
    }
    std::string data(room, '\0');
    const ssize_t n = ::pread(file_.get(), data.data(), room, static_cast<off_t>(*offset));
    if (n < 0) return os::ErrnoStatus(errno, "pread");
    // A hole grows from its front end on: what is still there now was there when it was read.
    if (n > 0 && FirstKept(*offset) != *offset) continue;
    data.resize(n);
    return data;
  }
}

}  // namespace meshrun::worker
