// Memory that an operation reads or writes: `rows` runs of `row_bytes`, `pitch` apart.
//
// A slice of a contiguous tensor along any dimension is such a span: along dim 0 one row, along dim
// d as many rows as there are index tuples before d. Offsets into a span count its own bytes in row
// order ("packed" bytes), never the gaps. Both ends of a message agree on packed bytes alone; each
// end's memory may be laid out differently. Pure; no errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace meshrun {

struct Layout {
  int64_t rows = 1;
  int64_t row_bytes = 0;
  // From the start of a row to the start of the next; meaningless for one row.
  int64_t pitch = 0;

  int64_t bytes() const { return rows * row_bytes; }
  // From the first byte to just after the last one, gaps included.
  int64_t extent() const { return rows <= 1 ? row_bytes : (rows - 1) * pitch + row_bytes; }
  bool is_contiguous() const { return rows <= 1 || pitch == row_bytes; }
  // Whether packed bytes [offset, offset + length) lie side by side, so that they can be sent or
  // received where they are.
  bool is_contiguous(int64_t offset, int64_t length) const {
    return is_contiguous() || length == 0 ||
           offset / row_bytes == (offset + length - 1) / row_bytes;
  }
  // How many bytes from packed byte `offset` on are next to each other.
  int64_t run_at(int64_t offset) const {
    return is_contiguous() ? bytes() - offset : row_bytes - offset % row_bytes;
  }
  // The place of packed byte `offset`, counted from the start.
  int64_t position(int64_t offset) const {
    return is_contiguous() ? offset : offset / row_bytes * pitch + offset % row_bytes;
  }
};

struct StridedSpan {
  std::byte* data = nullptr;  // null where there are no bytes
  Layout layout;
};

struct ConstStridedSpan {
  const std::byte* data = nullptr;
  Layout layout;

  ConstStridedSpan() = default;
  ConstStridedSpan(const std::byte* d, Layout l) : data(d), layout(l) {}
  ConstStridedSpan(const StridedSpan& s) : data(s.data), layout(s.layout) {}  // NOLINT: a view
};

inline StridedSpan contiguous(void* data, int64_t bytes) {
  return {static_cast<std::byte*>(data), {1, bytes, bytes}};
}

// What is prefetched before it is copied, since the processor cannot predict it.
enum class Prefetch : uint8_t {
  kRows,  // rows that lie apart
  // Everything. Saves a third of the time if the data exceed the caches, and costs time otherwise.
  kAll,
};

// Packed bytes [from_offset, from_offset + bytes) of `from` to those at `to_offset` of `to`. The
// two are apart or the same bytes of the same memory: a piece that is already where it belongs.
void copy(ConstStridedSpan from, int64_t from_offset, StridedSpan to, int64_t to_offset,
          int64_t bytes, Prefetch prefetch = Prefetch::kRows);

// copy() from pieces that are produced on demand, as they are written.
using Fill = std::function<void(int32_t piece, int64_t from_offset, StridedSpan to,
                                int64_t to_offset, int64_t bytes)>;

// Packed bytes [offset, offset + packed.size()) of `span`.
void pack(ConstStridedSpan span, int64_t offset, std::span<std::byte> packed);
void unpack(StridedSpan span, int64_t offset, std::span<const std::byte> packed);

}  // namespace meshrun
