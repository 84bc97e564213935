#include "parallel/checkpoint/range_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/os/fd.h"
#include "core/os/files.h"

namespace meshrun {
namespace {

constexpr uint64_t kLeastChunk = uint64_t{1} << 20;
constexpr uint64_t kMostChunks = 16384;
// After so many bytes the disk is asked to begin.
constexpr uint64_t kAhead = uint64_t{16} << 20;

absl::Status write_all(int fd, std::string_view bytes, uint64_t offset, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return os::ErrnoStatus(errno, "cannot write " + path);
    if (count == 0) return os::ErrnoStatus(EIO, "cannot write " + path);
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

// Walks over ranges as over one stream of bytes.
class Reader {
 public:
  explicit Reader(std::span<const FileRange> ranges) : ranges_(ranges) { skip_empty(); }

  bool is_at_end() const { return index_ == ranges_.size(); }
  uint64_t place() const { return ranges_[index_].begin + done_; }
  // Bytes from place() on, at most `most`, that follow one another in the file.
  uint64_t contiguous(uint64_t most) const {
    uint64_t end = ranges_[index_].begin + ranges_[index_].bytes;
    for (size_t i = index_ + 1; i < ranges_.size() && end - place() < most; ++i) {
      if (ranges_[i].bytes == 0) continue;
      if (ranges_[i].begin != end) break;
      end += ranges_[i].bytes;
    }
    return std::min(most, end - place());
  }
  // The next `count` bytes: in their own memory where they lie together there, else in `buffer`.
  std::string_view take(uint64_t count, std::vector<char>& buffer) {
    const FileRange& range = ranges_[index_];
    if (range.memory != nullptr && range.bytes - done_ >= count) {
      const std::string_view bytes(range.memory + done_, count);
      advance(count);
      return bytes;
    }
    buffer.resize(std::max<size_t>(buffer.size(), count));
    uint64_t at = 0;
    while (at < count) {
      const FileRange& part = ranges_[index_];
      const uint64_t size = std::min(count - at, part.bytes - done_);
      if (part.memory != nullptr) {
        std::memcpy(buffer.data() + at, part.memory + done_, size);
      } else {
        part.fill(done_, {buffer.data() + at, size});
      }
      advance(size);
      at += size;
    }
    return {buffer.data(), count};
  }

 private:
  void advance(uint64_t count) {
    done_ += count;
    if (done_ < ranges_[index_].bytes) return;
    ++index_;
    done_ = 0;
    skip_empty();
  }
  void skip_empty() {
    while (index_ < ranges_.size() && ranges_[index_].bytes == 0) ++index_;
  }

  const std::span<const FileRange> ranges_;
  size_t index_ = 0;
  uint64_t done_ = 0;
};

}  // namespace

uint64_t chunk_bytes_of(uint64_t file_bytes) {
  return std::max(kLeastChunk, std::bit_ceil((file_bytes + kMostChunks - 1) / kMostChunks));
}

absl::Status RangeWriter::write(const std::string& path, std::span<const FileRange> ranges,
                                uint64_t chunk_bytes, std::vector<WrittenChunk>& written) {
  Reader reader(ranges);
  if (reader.is_at_end()) return absl::OkStatus();
  os::UniqueFd& fd = files_[path];
  // Without reading: NFS then sends what was written, and not the page around it.
  if (!fd) fd = os::UniqueFd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return os::ErrnoStatus(errno, "cannot open " + path);
  std::vector<char> buffer;
  while (!reader.is_at_end()) {
    if (is_stopped_()) return absl::CancelledError("the save was given up");
    const uint64_t begin = reader.place();
    const uint64_t most = (begin / chunk_bytes + 1) * chunk_bytes - begin;
    const std::string_view bytes = reader.take(reader.contiguous(most), buffer);
    if (const absl::Status status = write_all(fd.get(), bytes, begin, path); !status.ok()) {
      return status;
    }
    written.push_back({begin, begin + bytes.size(), Xxh3(bytes)});
    bytes_done_ += bytes.size();
    // The disk begins now, and not when all is in memory. Errors are ignored: the flush tells them.
    if (begin / kAhead != (begin + bytes.size()) / kAhead) {
      ::sync_file_range(fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
    }
  }
  return absl::OkStatus();
}

absl::Status RangeWriter::flush() {
  for (const auto& [path, fd] : files_) {
    if (::fdatasync(fd.get()) != 0) return os::ErrnoStatus(errno, "cannot flush " + path);
  }
  files_.clear();
  return absl::OkStatus();
}

}  // namespace meshrun
