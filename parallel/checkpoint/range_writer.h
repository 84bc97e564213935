// Writes ranges of files that other processes write too, hashes them on the way, and never has more
// of them in memory than one chunk.
//
// Threads: one at a time; bytes_done() from any. Errors: absl::Status with the path and the
// system's reason; RESOURCE_EXHAUSTED: the disk is full; CANCELLED: `is_stopped` said so.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/checkpoint/xxh3.h"
#include "core/os/fd.h"

namespace meshrun {

// Bytes that are to lie at a place of a file.
struct FileRange {
  uint64_t begin = 0;  // in the file
  uint64_t bytes = 0;
  // Their memory; null: `fill` gives them.
  const char* memory = nullptr;
  // Fills `to` with the range's bytes from `from` on.
  std::function<void(uint64_t from, std::span<char> to)> fill = {};
};

// What was written between two places of a file.
struct WrittenChunk {
  uint64_t begin = 0;
  uint64_t end = 0;
  Xxh3Hash hash;
};

// Greatest length of a chunk in a file of so many bytes: a manifest stays small, and a reader reads
// little that it does not need. Chunks end at multiples of it, and where a rank's ranges end.
uint64_t chunk_bytes_of(uint64_t file_bytes);

class RangeWriter {
 public:
  explicit RangeWriter(std::function<bool()> is_stopped) : is_stopped_(std::move(is_stopped)) {}

  // Writes `ranges`, which are in order and do not overlap, into the file `path`, which is there.
  // Appends what was written.
  absl::Status write(const std::string& path, std::span<const FileRange> ranges,
                     uint64_t chunk_bytes, std::vector<WrittenChunk>& written);
  // Brings all that was written to the disk, and closes the files.
  absl::Status flush();
  // Closes the files, also those that were not flushed.
  void close() { files_.clear(); }

  uint64_t bytes_done() const { return bytes_done_; }

 private:
  const std::function<bool()> is_stopped_;
  std::map<std::string, os::UniqueFd> files_;
  std::atomic<uint64_t> bytes_done_ = 0;
};

}  // namespace meshrun
