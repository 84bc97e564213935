#include "parallel/base/strided_span.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "parallel/base/prefetch.h"

namespace meshrun {
namespace {

// How far ahead memory is asked for, and how much at a time.
constexpr int64_t kAhead = 2048, kBlock = 1024;
// The longest row of which the next one is asked for: both must stay in the first cache.
constexpr int64_t kLongestAhead = 8192;

void copy_run(const std::byte* from, std::byte* to, int64_t bytes, Prefetch prefetch) {
  while (prefetch == Prefetch::kAll && bytes >= kAhead + kBlock) {
    prefetch_to_read(from + kAhead, kBlock);
    prefetch_to_write(to + kAhead, kBlock);
    std::memcpy(to, from, kBlock);
    from += kBlock;
    to += kBlock;
    bytes -= kBlock;
  }
  std::memcpy(to, from, bytes);
}

template <int64_t kBytes>
void copy_short_rows(const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch,
                     int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_pitch, from + row * from_pitch, kBytes);
  }
}

void copy_rows(const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch,
               int64_t row_bytes, int64_t rows, Prefetch prefetch) {
  // Rows of a few bytes: a call of memcpy for each would cost more than the bytes.
  switch (row_bytes) {
    case 4:
      return copy_short_rows<4>(from, from_pitch, to, to_pitch, rows);
    case 8:
      return copy_short_rows<8>(from, from_pitch, to, to_pitch, rows);
    case 16:
      return copy_short_rows<16>(from, from_pitch, to, to_pitch, rows);
    case 32:
      return copy_short_rows<32>(from, from_pitch, to, to_pitch, rows);
    default:
      break;
  }
  if (row_bytes < kCacheLine || row_bytes > kLongestAhead) {
    for (int64_t row = 0; row < rows; ++row) {
      copy_run(from + row * from_pitch, to + row * to_pitch, row_bytes, prefetch);
    }
    return;
  }
  const bool reads_ahead = prefetch == Prefetch::kAll || from_pitch != row_bytes;
  const int64_t ahead = (kAhead + row_bytes - 1) / row_bytes;
  for (int64_t row = 0; row < rows; ++row, from += from_pitch, to += to_pitch) {
    for (int64_t at = 0; at < row_bytes; at += kBlock) {
      const int64_t bytes = std::min(kBlock, row_bytes - at);
      if (row + ahead < rows) {
        if (reads_ahead) prefetch_to_read(from + ahead * from_pitch + at, bytes);
        prefetch_to_write(to + ahead * to_pitch + at, bytes);
      }
      std::memcpy(to + at, from + at, bytes);
    }
  }
}

}  // namespace

void copy(ConstStridedSpan from, int64_t from_offset, StridedSpan to, int64_t to_offset,
          int64_t bytes, Prefetch prefetch) {
  // The rows of one side, or of both, which then are as long as each other.
  const int64_t row = from.layout.is_contiguous() ? to.layout.row_bytes : from.layout.row_bytes;
  const bool same_rows = (from.layout.is_contiguous() || from.layout.row_bytes == row) &&
                         (to.layout.is_contiguous() || to.layout.row_bytes == row) &&
                         !(from.layout.is_contiguous() && to.layout.is_contiguous());
  while (bytes > 0) {
    const std::byte* source = from.data + from.layout.position(from_offset);
    std::byte* target = to.data + to.layout.position(to_offset);
    int64_t step = std::min({bytes, from.layout.run_at(from_offset), to.layout.run_at(to_offset)});
    const bool from_starts_row = from.layout.is_contiguous() || from_offset % row == 0;
    const bool to_starts_row = to.layout.is_contiguous() || to_offset % row == 0;
    if (same_rows && from_starts_row && to_starts_row && bytes >= 2 * row) {
      step = bytes / row * row;
      const int64_t from_pitch = from.layout.is_contiguous() ? row : from.layout.pitch;
      const int64_t to_pitch = to.layout.is_contiguous() ? row : to.layout.pitch;
      if (source != target) {
        copy_rows(source, from_pitch, target, to_pitch, row, step / row, prefetch);
      }
    } else if (source != target) {
      copy_run(source, target, step, prefetch);
    }
    from_offset += step;
    to_offset += step;
    bytes -= step;
  }
}

void pack(ConstStridedSpan span, int64_t offset, std::span<std::byte> packed) {
  const auto bytes = static_cast<int64_t>(packed.size());
  copy(span, offset, contiguous(packed.data(), bytes), 0, bytes);
}

void unpack(StridedSpan span, int64_t offset, std::span<const std::byte> packed) {
  const auto bytes = static_cast<int64_t>(packed.size());
  copy(ConstStridedSpan(packed.data(), {1, bytes, bytes}), 0, span, offset, bytes);
}

}  // namespace meshrun
