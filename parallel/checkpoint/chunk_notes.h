// What the ranks of a save have written, by file: each notes its chunks beside the files, and the
// leader puts them together. Without LibTorch. Errors: absl::Status with the path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/checkpoint/manifest.h"
#include "parallel/checkpoint/range_writer.h"

namespace meshrun {

class ChunkNotes {
 public:
  explicit ChunkNotes(size_t files) : chunks_(files) {}

  std::vector<WrittenChunk>& of(size_t file) { return chunks_[file]; }

  // Writes the notes of `rank` into the directory; read() adds them to these, and removes the file.
  // A rank without a file has written nothing.
  absl::Status write(const std::string& directory, int rank) const;
  absl::Status read(const std::string& directory, int rank);
  // The chunks of a file of `bytes`, in order. INTERNAL: a place was not written, or twice.
  absl::StatusOr<std::vector<Manifest::Chunk>> cover(size_t file, const std::string& name,
                                                     uint64_t bytes) const;

 private:
  std::vector<std::vector<WrittenChunk>> chunks_;
};

}  // namespace meshrun
