// A file of a checkpoint whose bytes are compared with the manifest's hashes before anybody has
// them.
//
// Threads: several may read at a time. Errors: see tensor_source.h. DATA_LOSS names the file, the
// tensor, and the place: "DIR/step-5/model.safetensors is damaged: bytes 1048576 to 2097151 of
// layers.3.weight (bytes 1064960 to 2113535 of the file)". Small tensors share a chunk and its
// hash: the error names them, and says that the hash does not tell which of them it is.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/os/fd.h"

namespace meshrun {

class CheckedFile {
 public:
  struct Interval {
    uint64_t begin = 0;  // in the file
    uint64_t end = 0;
  };
  // Bytes of the file from `offset` on, which belong to one interval.
  using Take = std::function<void(uint64_t offset, std::string_view bytes)>;

  // What a header does whose bytes have not its hash. kIsReadAnyway is for those who look for more
  // damage: header() is then unchecked, and empty if it cannot be decoded.
  enum class DamagedHeader { kIsAnError, kIsReadAnyway };

  // Opens it, compares its length, and reads and compares its header. `file` must outlive this. A
  // file of version 1, which has one hash for all of it, is not read for that: see VerifyAll().
  static absl::StatusOr<std::unique_ptr<CheckedFile>> Open(
      const std::string& path, const Manifest::File& file,
      DamagedHeader damaged_header = DamagedHeader::kIsAnError);

  const SafetensorsHeader& header() const { return header_; }
  size_t chunk_count() const { return file_.chunks.size(); }

  // Reads each chunk that overlaps one of `intervals` once, compares it, and calls `take` with what
  // of it lies in an interval. The intervals are in order and do not overlap. Memory: the largest
  // chunk. In version 1, whose hash is that of the whole file, nothing is compared.
  absl::Status Read(std::span<const Interval> intervals, const Take& take) const;
  // Reads and compares the chunks [begin, end) of chunk_count(). In version 1, where begin is 0,
  // all of the file.
  absl::Status Verify(size_t begin, size_t end) const;
  absl::Status VerifyAll() const { return Verify(0, chunk_count()); }

 private:
  CheckedFile(std::string path, const Manifest::File& file, os::UniqueFd fd)
      : path_(std::move(path)), file_(file), fd_(std::move(fd)) {}

  // Fills header_ from the bytes that `read` appends: those from `begin` to `end`.
  absl::Status DecodeHeader(
      const std::function<absl::Status(uint64_t begin, uint64_t end, std::string* to)>& read);
  Interval ChunkPlace(size_t chunk) const;
  // Reads and compares one chunk.
  absl::Status ReadChunk(size_t chunk, std::string* bytes) const;
  // Where the first tensor begins.
  uint64_t DataBegin() const;
  // The header and the tensors that have a part there, for sentences, in the order of the file.
  std::vector<std::string> Contents(const Interval& place) const;

  const std::string path_;
  const Manifest::File& file_;
  const os::UniqueFd fd_;
  SafetensorsHeader header_;
};

}  // namespace meshrun
