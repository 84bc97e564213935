// Sums of segments: how the threads of a block share what they read and add.
//
// A block sums `columns` chunks of some segments that follow each other. Their positions follow
// each other, too, so all threads read the slices tile by tile into shared memory: as many accesses
// are under way where segments are short or of unequal length as where they are long. Then each
// thread adds what belongs to its chunks, in order. These are functions of the block's and the
// thread's number, without CUDA's variables, so that the host can run every thread of a launch
// (tests/parallel/kernels/cuda_bodies_test).
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_pipeline_primitives.h>
#endif

#include "parallel/kernels/cuda/bodies.h"
#include "parallel/kernels/cuda/chunks.h"
#include "parallel/kernels/cuda/indexing.h"
#include "parallel/kernels/cuda/threads.h"

namespace meshrun::cuda {

// Each thread sums at most kChunksOfThread chunks, and reads at most kReadsOfThread accesses of a
// tile. There are more reads than chunks, so that a block with a few slices above the average needs
// one tile.
constexpr int kChunksOfThread = 2;
constexpr int kReadsOfThread = 3;
// A block sums at most so many chunks of a slice.
constexpr int kMostColumns = 64;

// output[outer, r, :] = the slices positions[offsets[r]], ... positions[offsets[r + 1] - 1], of
// `first` and, from position `first_extent` on, of `second`.
template <typename T, typename Sum, int N, bool kAligned>
struct SegmentedSumBody {
  using Value = Vector<T, N>;
  using RowAccess = Access<T, N>;

  // What the threads of a block share: rows of slices, each in `accesses_of_row` accesses as they
  // lie in memory, and where the block's segments begin and end.
  struct Tile {
    alignas(16) unsigned char memory[kBlock * kReadsOfThread * sizeof(RowAccess)];
    int64_t offsets[kBlock * kChunksOfThread + 1];
    int8_t misalignments[kAligned ? 1 : kBlock * kReadsOfThread];  // of each row

    MESHRUN_HOST_DEVICE RowAccess& access(int i) { return reinterpret_cast<RowAccess*>(memory)[i]; }
    MESHRUN_HOST_DEVICE const RowAccess& access(int i) const {
      return reinterpret_cast<const RowAccess*>(memory)[i];
    }
  };

  Slices<T> output;
  Slices<const T> first;
  Slices<const T> second;
  int64_t first_extent;
  const int64_t* offsets;
  const int64_t* positions;
  int64_t segments;
  int64_t inner;
  int columns;          // chunks of a slice in a block
  int lead;             // accesses of a row in a tile before that of the first chunk
  int accesses_of_row;  // in a tile
  int rows_of_tile;
  int segments_of_block;
  Divider<uint32_t> by_column;    // by the columns
  Divider<uint32_t> by_row;       // by the accesses of a row
  SizedDivider by_column_group;   // by the blocks that share a slice
  SizedDivider by_segment_group;  // by the blocks that share an outer row
  uint64_t blocks;

  MESHRUN_HOST_DEVICE const T* slice(int64_t o, int64_t position) const {
    return position < first_extent ? first.at(o, position) : second.at(o, position - first_extent);
  }
};

// Copies to the block's memory without passing the registers, where a GPU can.
template <typename V>
MESHRUN_HOST_DEVICE void begin_copy(V& to, const V& from) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(V) >= 4) {
    __pipeline_memcpy_async(&to, &from, sizeof(V));
    return;
  }
#endif
  to = from;
}

// One thread of one block.
template <typename Body>
class SegmentThread;

template <typename T, typename Sum, int N, bool kAligned>
class SegmentThread<SegmentedSumBody<T, Sum, N, kAligned>> {
 public:
  using Body = SegmentedSumBody<T, Sum, N, kAligned>;
  using Tile = typename Body::Tile;
  using RowAccess = typename Body::RowAccess;
  using Value = typename Body::Value;

  MESHRUN_HOST_DEVICE SegmentThread(const Body& body, uint64_t block, unsigned thread)
      : body_(body), thread_(static_cast<int>(thread)) {
    const auto [group, column_group] = body.by_column_group.divide(block);
    const auto [o, segment_group] = body.by_segment_group.divide(group);
    outer_ = static_cast<int64_t>(o);
    first_chunk_ = static_cast<int64_t>(column_group) * body.columns;
    first_segment_ = static_cast<int64_t>(segment_group) * body.segments_of_block;
    const int64_t segments = body.segments - first_segment_;
    segments_ =
        segments < body.segments_of_block ? static_cast<int>(segments) : body.segments_of_block;
    begin_ = body.offsets[first_segment_];
    end_ = body.offsets[first_segment_ + segments_];
  }

  // The positions that the block adds; the same for all of its threads.
  MESHRUN_HOST_DEVICE int64_t begin() const { return begin_; }
  MESHRUN_HOST_DEVICE int64_t end() const { return end_; }

  // Before the first tile.
  MESHRUN_HOST_DEVICE void read_offsets(Tile& tile) const {
    for (int i = thread_; i <= segments_; i += kBlock) {
      tile.offsets[i] = body_.offsets[first_segment_ + i];
    }
  }

  // The thread's accesses of the slices from position number `from` on; they may still be under
  // way when it returns.
  MESHRUN_HOST_DEVICE void read(int64_t from, Tile& tile) const {
    int64_t positions[kReadsOfThread];
    MESHRUN_UNROLL
    for (int k = 0; k < kReadsOfThread; ++k) {
      const auto row = static_cast<int>(body_.by_row.divide(index(k)).quotient);
      positions[k] =
          row < body_.rows_of_tile && from + row < end_ ? body_.positions[from + row] : -1;
    }
    MESHRUN_UNROLL
    for (int k = 0; k < kReadsOfThread; ++k) {
      if (positions[k] < 0) continue;
      const auto [row, access] = body_.by_row.divide(index(k));
      const T* const slice = body_.slice(outer_, positions[k]);
      const int64_t chunk = first_chunk_ - body_.lead + access;
      int behind = 0;
      if constexpr (!kAligned) {
        behind = misalignment<N>(slice);
        if (access == 0) tile.misalignments[row] = static_cast<int8_t>(behind);
      }
      const int64_t element = chunk * N - behind;
      if (element < body_.inner && element + N > 0) {
        begin_copy(tile.access(static_cast<int>(index(k))),
                   *access_at<const RowAccess>(slice + element));
      }
    }
  }

  // What the tile from position number `from` on has for the thread's chunks.
  MESHRUN_HOST_DEVICE void add(int64_t from, const Tile& tile) {
    MESHRUN_UNROLL
    for (int k = 0; k < kChunksOfThread; ++k) {
      const auto [segment, column] = body_.by_column.divide(index(k));
      if (static_cast<int>(segment) >= segments_) continue;
      // Relative to the tile.
      const int64_t begin = tile.offsets[segment] - from;
      const int64_t end = tile.offsets[segment + 1] - from;
      if (end <= 0 || begin >= body_.rows_of_tile) continue;
      const int last = end < body_.rows_of_tile ? static_cast<int>(end) : body_.rows_of_tile;
      int behind = 0;
      if constexpr (!kAligned) behind = misalignment<N>(output_of(segment));
      if (begin >= 0 && begin < end) {
        sums_[k].start(in(tile, static_cast<int>(begin), static_cast<int>(column), behind));
      }
      MESHRUN_ROLLED
      for (int i = begin < 0 ? 0 : static_cast<int>(begin) + 1; i < last; ++i) {
        sums_[k].add(in(tile, i, static_cast<int>(column), behind));
      }
    }
  }

  MESHRUN_HOST_DEVICE void write() const {
    MESHRUN_UNROLL
    for (int k = 0; k < kChunksOfThread; ++k) {
      const auto [segment, column] = body_.by_column.divide(index(k));
      if (static_cast<int>(segment) >= segments_) continue;
      T* const row = output_of(segment);
      const Chunk<N> chunk = chunk_at<N, kAligned>(row, body_.inner, first_chunk_ + column);
      if (chunk.begin >= body_.inner) continue;
      write_chunk<N, kAligned>(row, chunk, __builtin_bit_cast(RowAccess, sums_[k].rounded()));
    }
  }

 private:
  MESHRUN_HOST_DEVICE uint32_t index(int k) const {
    return static_cast<uint32_t>(thread_ + k * kBlock);
  }
  MESHRUN_HOST_DEVICE T* output_of(uint32_t segment) const {
    return body_.output.at(outer_, first_segment_ + segment);
  }

  // The chunk `column` of a row that begins `behind` elements after an aligned address.
  MESHRUN_HOST_DEVICE Value in(const Tile& tile, int row, int column, int behind) const {
    if constexpr (kAligned) {
      return __builtin_bit_cast(Value, tile.access(row * body_.accesses_of_row + column));
    } else {
      // In the row's accesses, in elements; one access further, so that it is not negative.
      const int element = (column + body_.lead + 1) * N + tile.misalignments[row] - behind;
      const int low = element / N - 1;
      RowAccess parts[2] = {};
      const int begin = row * body_.accesses_of_row;
      if (low >= 0) parts[0] = tile.access(begin + low);
      if (low + 1 < body_.accesses_of_row) parts[1] = tile.access(begin + low + 1);
      return __builtin_bit_cast(
          Value, cut(parts[0], parts[1],
                     static_cast<unsigned>(element % N * static_cast<int>(sizeof(T)))));
    }
  }

  const Body& body_;
  int thread_;
  int segments_;
  int64_t outer_;
  int64_t first_chunk_;
  int64_t first_segment_;
  int64_t begin_;
  int64_t end_;
  VectorSum<T, Sum, N> sums_[kChunksOfThread];
};

}  // namespace meshrun::cuda
