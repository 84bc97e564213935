#include "core/checkpoint/file_region.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/checkpoint/file_reads.h"
#include "core/os/files.h"
#include "core/status.h"

namespace meshrun {

absl::StatusOr<FileRegion> FileRegion::Open(const std::string& path) {
  os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return os::ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) {
    return absl::DataLossError(fmt::format("{} is not a regular file", path));
  }
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  auto file = std::make_shared<const File>(File{path, std::move(fd), size});
  return FileRegion(std::move(file), 0, size);
}

absl::StatusOr<FileRegion> FileRegion::Part(uint64_t offset, uint64_t size,
                                            std::string_view what) const {
  if (offset > size_ || size > size_ - offset) {
    return absl::DataLossError(
        fmt::format("{} is damaged: {} has {} bytes at byte {}, and the end is at {}", Describe(),
                    what, size, offset, size_));
  }
  return FileRegion(file_, begin_ + offset, size);
}

absl::Status FileRegion::Read(uint64_t offset, std::span<char> to) const {
  MESHRUN_RETURN_IF_ERROR(Part(offset, to.size(), "what is read").status());
  const uint64_t at = begin_ + offset;
  MESHRUN_ASSIGN_OR_RETURN(const size_t done, ReadUpTo(file_->fd, file_->path, at, to));
  if (done == to.size()) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("{} was truncated to {} bytes while it was read", file_->path, at + done));
}

absl::StatusOr<std::string> FileRegion::ReadAll(uint64_t most_bytes, std::string_view what) const {
  if (size_ > most_bytes) {
    return absl::UnimplementedError(fmt::format("{}: {} has {} bytes, and at most {} are read",
                                                Describe(), what, size_, most_bytes));
  }
  std::string content(size_, '\0');
  MESHRUN_RETURN_IF_ERROR(Read(0, content));
  return content;
}

std::string FileRegion::Describe() const {
  if (size_ == file_->size || size_ == 0) return file_->path;
  return fmt::format("{} (bytes {} to {})", file_->path, begin_, begin_ + size_ - 1);
}

}  // namespace meshrun
