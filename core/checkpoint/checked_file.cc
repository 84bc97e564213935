#include "core/checkpoint/checked_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/checkpoint/file_reads.h"
#include "core/checkpoint/xxh3.h"
#include "core/hash.h"
#include "core/status.h"

namespace meshrun {
namespace {

constexpr uint64_t kBlock = 1 << 20;
constexpr size_t kMostNamed = 5;  // tensors in a sentence

}  // namespace

absl::StatusOr<std::unique_ptr<CheckedFile>> CheckedFile::Open(const std::string& path,
                                                               const Manifest::File& file,
                                                               DamagedHeader damaged_header) {
  uint64_t bytes = 0;
  auto fd = OpenForReads(path, &bytes);
  if (absl::IsNotFound(fd.status())) return absl::DataLossError(path + " is missing");
  if (!fd.ok()) return fd.status();
  if (bytes != file.bytes) {
    return absl::DataLossError(fmt::format("{} is {}: {} bytes, {} were written", path,
                                           bytes < file.bytes ? "truncated" : "too long", bytes,
                                           file.bytes));
  }
  std::unique_ptr<CheckedFile> opened(new CheckedFile(path, file, *std::move(fd)));
  const absl::Status read =
      opened->DecodeHeader([&](uint64_t begin, uint64_t end, std::string* to) {
        const Interval interval = {begin, end};
        return opened->Read(std::span(&interval, 1),
                            [&](uint64_t, std::string_view content) { *to += content; });
      });
  if (read.ok()) return opened;
  // A header that still decodes tells which tensors share its damaged chunk.
  const absl::Status decoded =
      opened->DecodeHeader([&](uint64_t begin, uint64_t end, std::string* to) {
        to->resize(end);
        return ReadAt(opened->fd_, path, begin, std::span(*to).subspan(begin));
      });
  if (damaged_header == DamagedHeader::kIsReadAnyway) return opened;
  // The sentence of the chunk, now with names; where all chunks are good, that of the decoder.
  for (size_t i = 0; decoded.ok() && i < file.chunks.size(); ++i) {
    if (opened->ChunkPlace(i).begin >= opened->DataBegin()) break;
    MESHRUN_RETURN_IF_ERROR(opened->Verify(i, i + 1));
  }
  return read;
}

absl::Status CheckedFile::DecodeHeader(
    const std::function<absl::Status(uint64_t, uint64_t, std::string*)>& read) {
  std::string content;
  const uint64_t first = std::min<uint64_t>(8, file_.bytes);
  MESHRUN_RETURN_IF_ERROR(read(0, first, &content));
  MESHRUN_ASSIGN_OR_RETURN(const uint64_t end, SafetensorsHeaderEnd(path_, content, file_.bytes));
  MESHRUN_RETURN_IF_ERROR(read(first, end, &content));
  MESHRUN_ASSIGN_OR_RETURN(header_, DecodeSafetensorsHeader(path_, content, file_.bytes));
  return absl::OkStatus();
}

absl::Status CheckedFile::Read(std::span<const Interval> intervals, const Take& take) const {
  for (const Interval& interval : intervals) {
    if (interval.begin > interval.end || interval.end > file_.bytes) {
      return absl::InvalidArgumentError(fmt::format("{}: bytes {} to {} are read of {}", path_,
                                                    interval.begin, interval.end, file_.bytes));
    }
  }
  std::string bytes;
  if (file_.chunks.empty()) {
    for (const Interval& interval : intervals) {
      for (uint64_t at = interval.begin; at < interval.end; at += bytes.size()) {
        bytes.resize(std::min(kBlock, interval.end - at));
        MESHRUN_RETURN_IF_ERROR(ReadAt(fd_, path_, at, bytes));
        take(at, bytes);
      }
    }
    return absl::OkStatus();
  }
  size_t next = 0;  // the first chunk that has not been read
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (intervals[i].begin == intervals[i].end) continue;
    const auto first =
        std::upper_bound(file_.chunks.begin(), file_.chunks.end(), intervals[i].begin,
                         [](uint64_t at, const Manifest::Chunk& chunk) { return at < chunk.end; });
    next = std::max(next, static_cast<size_t>(first - file_.chunks.begin()));
    for (; next < file_.chunks.size() && ChunkPlace(next).begin < intervals[i].end; ++next) {
      MESHRUN_RETURN_IF_ERROR(ReadChunk(next, &bytes));
      const Interval chunk = ChunkPlace(next);
      for (size_t k = i; k < intervals.size() && intervals[k].begin < chunk.end; ++k) {
        const uint64_t begin = std::max(intervals[k].begin, chunk.begin);
        const uint64_t end = std::min(intervals[k].end, chunk.end);
        if (begin >= end) continue;
        take(begin, std::string_view(bytes).substr(begin - chunk.begin, end - begin));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckedFile::Verify(size_t begin, size_t end) const {
  if (!file_.chunks.empty()) {
    std::string bytes;
    for (size_t i = begin; i < end; ++i) MESHRUN_RETURN_IF_ERROR(ReadChunk(i, &bytes));
    return absl::OkStatus();
  }
  // A file of no bytes in version 2 has no chunks, and nothing to compare.
  if (file_.sha256.empty() && file_.bytes == 0) return absl::OkStatus();
  Sha256Stream stream;
  const Interval all = {0, file_.bytes};
  MESHRUN_RETURN_IF_ERROR(
      Read(std::span(&all, 1), [&](uint64_t, std::string_view bytes) { stream.Add(bytes); }));
  const std::string hash = HexEncode(stream.Finish());
  if (hash == file_.sha256) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("{} is damaged: its SHA-256 is {}, that of what was written {}; a checkpoint of "
                  "version 1 has "
                  "one hash for each file, so which tensor is damaged is not known",
                  path_, hash, file_.sha256));
}

CheckedFile::Interval CheckedFile::ChunkPlace(size_t chunk) const {
  return {chunk == 0 ? 0 : file_.chunks[chunk - 1].end, file_.chunks[chunk].end};
}

absl::Status CheckedFile::ReadChunk(size_t chunk, std::string* bytes) const {
  const Interval place = ChunkPlace(chunk);
  bytes->resize(place.end - place.begin);
  MESHRUN_RETURN_IF_ERROR(ReadAt(fd_, path_, place.begin, *bytes));
  if (Xxh3(*bytes) == file_.chunks[chunk].hash) return absl::OkStatus();
  const std::vector<std::string> parts = Contents(place);
  const std::vector<std::string> named(parts.begin(),
                                       parts.begin() + std::min(parts.size(), kMostNamed));
  std::string text = fmt::format("{} is damaged: {}", path_, fmt::join(named, ", "));
  if (parts.size() > named.size()) text += fmt::format(" and {} more", parts.size() - named.size());
  text += fmt::format(" (bytes {} to {} of the file", place.begin, place.end - 1);
  if (parts.size() > 1) {
    text += fmt::format("; these {} have one hash, so which of them is damaged is not known",
                        parts.size());
  }
  return absl::DataLossError(text + ")");
}

uint64_t CheckedFile::DataBegin() const {
  uint64_t begin = file_.bytes;
  for (const auto& [name, entry] : header_.tensors) begin = std::min(begin, entry.begin);
  return begin;
}

std::vector<std::string> CheckedFile::Contents(const Interval& place) const {
  if (header_.file_bytes == 0) {
    return {place.begin == 0 ? "its header, or what follows it" : "what its damaged header names"};
  }
  std::vector<std::pair<uint64_t, std::string>> parts;
  if (place.begin < DataBegin()) parts.emplace_back(place.begin, "its header");
  for (const auto& [name, entry] : header_.tensors) {
    const uint64_t begin = std::max(entry.begin, place.begin);
    const uint64_t end = std::min(entry.end, place.end);
    if (begin >= end) continue;
    parts.emplace_back(begin, fmt::format("bytes {} to {} of {}", begin - entry.begin,
                                          end - 1 - entry.begin, name));
  }
  std::sort(parts.begin(), parts.end());
  std::vector<std::string> texts;
  for (auto& [begin, text] : parts) texts.push_back(std::move(text));
  return texts;
}

}  // namespace meshrun
