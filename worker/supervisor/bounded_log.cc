#include "worker/supervisor/bounded_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "core/os/files.h"

namespace meshrun::worker {

BoundedLog::BoundedLog(const std::string& path, uint64_t limit) : limit_(limit) {
  // The rank could have put something else there.
  if (limit > 0) file_.reset(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

absl::Status BoundedLog::Check() {
  constexpr uint64_t kSector = 512;
  struct stat info;
  if (!file_ || ::fstat(file_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::OkStatus();
  }
  if (static_cast<uint64_t>(info.st_blocks) * kSector <= limit_) return absl::OkStatus();
  const auto size = static_cast<uint64_t>(info.st_size);
  const auto block = static_cast<uint64_t>(std::max<blksize_t>(info.st_blksize, 4096));
  const uint64_t end = (size - std::min(size, limit_ / 2)) / block * block;
  if (end == 0 || ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                              static_cast<off_t>(end)) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  file_.reset();
  return os::ErrnoStatus(error, "the log of a rank cannot be kept within its limit");
}

}  // namespace meshrun::worker
