#include "parallel/comm/ucx/engine/strided_span.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace meshrun::ucx {
namespace {

// Contiguous bytes from packed byte `offset` to the end of its row, or of the span.
int64_t run_at(const Layout& layout, int64_t offset) {
  return layout.is_contiguous() ? layout.bytes() - offset
                                : layout.row_bytes - offset % layout.row_bytes;
}

template <int64_t kBytes>
void copy_short_rows(const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch,
                     int64_t rows) {
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_pitch, from + row * from_pitch, kBytes);
  }
}

// Rows of a few bytes: a call of memcpy for each would cost more than the bytes.
void copy_rows(const std::byte* from, int64_t from_pitch, std::byte* to, int64_t to_pitch,
               int64_t row_bytes, int64_t rows) {
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
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(to + row * to_pitch, from + row * from_pitch, row_bytes);
      }
  }
}

void copy_past_caches(std::byte* to, const std::byte* from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t kLine = 64;
  const int64_t unaligned = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(to)) & (kLine - 1);
  const int64_t head = std::min(unaligned, bytes), lines = (bytes - head) / kLine;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  for (int64_t line = 0; line < lines; ++line, to += kLine, from += kLine) {
    __m128i parts[4];
    for (int i = 0; i < 4; ++i) {
      parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    }
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, parts[i]);
  }
  // Before whoever is told of it reads it.
  _mm_sfence();
  bytes -= head + lines * kLine;
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace

void copy(ConstStridedSpan from, int64_t from_offset, StridedSpan to, int64_t to_offset,
          int64_t bytes, Caching caching) {
  // The rows of one side, or of both, which then are as long as each other.
  const int64_t row = from.layout.is_contiguous() ? to.layout.row_bytes : from.layout.row_bytes;
  const bool same_rows = (from.layout.is_contiguous() || from.layout.row_bytes == row) &&
                         (to.layout.is_contiguous() || to.layout.row_bytes == row) &&
                         !(from.layout.is_contiguous() && to.layout.is_contiguous());
  while (bytes > 0) {
    const std::byte* source = from.data + from.layout.position(from_offset);
    std::byte* target = to.data + to.layout.position(to_offset);
    int64_t step =
        std::min({bytes, run_at(from.layout, from_offset), run_at(to.layout, to_offset)});
    const bool from_starts_row = from.layout.is_contiguous() || from_offset % row == 0;
    const bool to_starts_row = to.layout.is_contiguous() || to_offset % row == 0;
    if (same_rows && from_starts_row && to_starts_row && bytes >= 2 * row) {
      step = bytes / row * row;
      const int64_t from_pitch = from.layout.is_contiguous() ? row : from.layout.pitch;
      const int64_t to_pitch = to.layout.is_contiguous() ? row : to.layout.pitch;
      if (source != target) copy_rows(source, from_pitch, target, to_pitch, row, step / row);
    } else if (source != target && caching == Caching::kStreamed) {
      copy_past_caches(target, source, step);
    } else if (source != target) {
      std::memcpy(target, source, step);
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

}  // namespace meshrun::ucx
