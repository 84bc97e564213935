#include "parallel/checkpoint/chunk_notes.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/os/files.h"
#include "core/status.h"
#include "fmt/format.h"

namespace meshrun {
namespace {

// As it lies in the file of notes, which the same program reads on the same kind of host.
struct Note {
  uint64_t file = 0;
  WrittenChunk chunk;
};

std::string path_of(const std::string& directory, int rank) {
  return fmt::format("{}/.chunks-{}", directory, rank);
}

}  // namespace

absl::Status ChunkNotes::write(const std::string& directory, int rank) const {
  std::string content;
  for (size_t file = 0; file < chunks_.size(); ++file) {
    for (const WrittenChunk& chunk : chunks_[file]) {
      const Note note{file, chunk};
      content.append(reinterpret_cast<const char*>(&note), sizeof(note));
    }
  }
  if (content.empty()) return absl::OkStatus();
  return Annotate(os::WriteFileAtomically(path_of(directory, rank), content, 0666, /*sync=*/false),
                  "cannot write");
}

absl::Status ChunkNotes::read(const std::string& directory, int rank) {
  const std::string path = path_of(directory, rank);
  const absl::StatusOr<std::string> content = os::ReadFile(path);
  if (absl::IsNotFound(content.status())) return absl::OkStatus();
  if (!content.ok()) return content.status();
  Note note;
  for (size_t at = 0; at + sizeof(note) <= content->size(); at += sizeof(note)) {
    std::memcpy(&note, content->data() + at, sizeof(note));
    if (note.file >= chunks_.size()) return absl::InternalError(path + " is damaged");
    chunks_[note.file].push_back(note.chunk);
  }
  ::unlink(path.c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Manifest::Chunk>> ChunkNotes::cover(size_t file, const std::string& name,
                                                               uint64_t bytes) const {
  std::vector<WrittenChunk> sorted = chunks_[file];
  std::erase_if(sorted, [](const WrittenChunk& chunk) { return chunk.begin == chunk.end; });
  std::ranges::sort(sorted, {}, &WrittenChunk::begin);
  std::vector<Manifest::Chunk> chunks;
  uint64_t end = 0;
  for (const WrittenChunk& chunk : sorted) {
    if (chunk.begin != end) break;
    end = chunk.end;
    chunks.push_back({end, chunk.hash});
  }
  if (end != bytes || chunks.size() != sorted.size()) {
    return absl::InternalError(
        fmt::format("the ranks have not written {} once: byte {} of {} is missing or written twice",
                    name, end, bytes));
  }
  return chunks;
}

}  // namespace meshrun
