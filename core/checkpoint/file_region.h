// A part of an open file: what a member of an archive is before anybody reads it.
//
// Threads: any, several at a time. Errors: see tensor_source.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/os/fd.h"

namespace meshrun {

// Copies share the open file.
class FileRegion {
 public:
  // All of a file. It follows links, and does not wait where `path` is a pipe.
  static absl::StatusOr<FileRegion> Open(const std::string& path);

  const std::string& path() const { return file_->path; }
  uint64_t size() const { return size_; }

  // DATA_LOSS: the region ends before `offset + size`. `what` is the subject of the text.
  absl::StatusOr<FileRegion> Part(uint64_t offset, uint64_t size, std::string_view what) const;
  // Fills `to` from `offset` on. DATA_LOSS: the region ends before, or the file was truncated.
  absl::Status Read(uint64_t offset, std::span<char> to) const;
  // All of it. UNIMPLEMENTED: it has more than `most_bytes`. `what` is the subject of the text.
  absl::StatusOr<std::string> ReadAll(uint64_t most_bytes, std::string_view what) const;

  // The subject of errors: "PATH", or "PATH (bytes 100 to 199)".
  std::string Describe() const;

 private:
  struct File {
    std::string path;
    os::UniqueFd fd;
    uint64_t size = 0;
  };

  FileRegion(std::shared_ptr<const File> file, uint64_t begin, uint64_t size)
      : file_(std::move(file)), begin_(begin), size_(size) {}

  std::shared_ptr<const File> file_;
  uint64_t begin_;
  uint64_t size_;
};

}  // namespace meshrun
