// Sums of segments: how the threads of a block share what they read and add.
//
// A block makes `lanes` chunks of each of some segments that follow each other. What they add are
// the slices at positions that follow each other as well, so that its threads read them together,
// tile by tile, into the block's memory: as many accesses are under way where segments are short
// or of unequal length as where they are long. Each thread then adds what belongs to its chunks, in
// order. Functions of the block's and the thread's number, without CUDA's variables, so that the
// host can run every thread of a launch (tests/parallel/kernels/cuda_bodies_test).
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_pipeline_primitives.h>
#endif

#include "parallel/kernels/cuda/bodies.h"
#include "parallel/kernels/cuda/chunks.h"
#include "parallel/kernels/cuda/indexing.h"
#include "parallel/kernels/cuda/threads.h"

namespace meshrun::cuda {

// A thread makes up to so many chunks, and reads so many accesses of a tile. More are read than
// made, because a block with a few slices above the average else needs a second tile for them.
constexpr int kChunksOfThread = 2;
constexpr int kReadsOfThread = 3;
// Of one slice, in one block.
constexpr int kMostLanes = 64;

// output[outer, r, :] = the slices positions[offsets[r]], ... positions[offsets[r + 1] - 1], of
// `first` and, from position `first_extent` on, of `second`.
template <typename T, typename Sum, int N, bool kAligned>
struct SegmentedSumBody {
  using Value = Vector<T, N>;
  using Part = Access<T, N>;

  // What the threads of a block share: rows of slices, each in `slot` accesses, as they lie in
  // memory, and where the block's segments begin and end.
  struct Tile {
    alignas(16) unsigned char memory[kBlock * kReadsOfThread * sizeof(Part)];
    int64_t offsets[kBlock * kChunksOfThread + 1];
    int8_t misalignments[kAligned ? 1 : kBlock * kReadsOfThread];  // of each row

    MESHRUN_HOST_DEVICE Part& access(int i) { return reinterpret_cast<Part*>(memory)[i]; }
    MESHRUN_HOST_DEVICE const Part& access(int i) const {
      return reinterpret_cast<const Part*>(memory)[i];
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
  int lanes;  // chunks of a slice in a block
  int lead;   // accesses of a slot before that of the block's first chunk
  int slot;   // accesses of a row in a tile
  int rows;   // of a tile
  int segments_of_block;
  Divider<uint32_t> by_lane;
  Divider<uint32_t> by_slot;
  Divider<uint64_t> by_lane_group;     // by the blocks that share a slice
  Divider<uint64_t> by_segment_group;  // by the blocks that share an outer row
  uint64_t blocks;

  MESHRUN_HOST_DEVICE const T* slice(int64_t o, int64_t position) const {
    return position < first_extent ? first.at(o, position) : second.at(o, position - first_extent);
  }
};

// Copies to the block's memory without passing the registers, where a GPU can.
template <typename Part>
MESHRUN_HOST_DEVICE void begin_copy(Part& to, const Part& from) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(Part) >= 4) {
    __pipeline_memcpy_async(&to, &from, sizeof(Part));
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
  using Part = typename Body::Part;
  using Value = typename Body::Value;

  MESHRUN_HOST_DEVICE SegmentThread(const Body& body, uint64_t block, unsigned thread)
      : body_(body), thread_(static_cast<int>(thread)) {
    const auto [group, lane_group] = body.by_lane_group.divide(block);
    const auto [o, segment_group] = body.by_segment_group.divide(group);
    outer_ = static_cast<int64_t>(o);
    first_chunk_ = static_cast<int64_t>(lane_group) * body.lanes;
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
  MESHRUN_UNCHECKED void read(int64_t from, Tile& tile) const {
    int64_t positions[kReadsOfThread];
    MESHRUN_UNROLL
    for (int k = 0; k < kReadsOfThread; ++k) {
      const auto row = static_cast<int>(body_.by_slot.divide(index(k)).quotient);
      positions[k] = row < body_.rows && from + row < end_ ? body_.positions[from + row] : -1;
    }
    MESHRUN_UNROLL
    for (int k = 0; k < kReadsOfThread; ++k) {
      if (positions[k] < 0) continue;
      const auto [row, access] = body_.by_slot.divide(index(k));
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
                   *reinterpret_cast<const Part*>(slice + element));
      }
    }
  }

  // What the tile from position number `from` on has for the thread's chunks.
  MESHRUN_HOST_DEVICE void add(int64_t from, const Tile& tile) {
    MESHRUN_UNROLL
    for (int k = 0; k < kChunksOfThread; ++k) {
      const auto [segment, lane] = body_.by_lane.divide(index(k));
      if (static_cast<int>(segment) >= segments_) continue;
      // Within the tile.
      const int64_t begin = tile.offsets[segment] - from;
      const int64_t end = tile.offsets[segment + 1] - from;
      const int last = end < body_.rows ? static_cast<int>(end) : body_.rows;
      int behind = 0;
      if constexpr (!kAligned) behind = misalignment<N>(output_of(segment));
      if (begin >= 0 && begin < last) {
        sums_[k].start(in(tile, static_cast<int>(begin), static_cast<int>(lane), behind));
      }
      MESHRUN_ROLLED
      for (int i = begin < 0 ? 0 : static_cast<int>(begin) + 1; i < last; ++i) {
        sums_[k].add(in(tile, i, static_cast<int>(lane), behind));
      }
    }
  }

  MESHRUN_HOST_DEVICE void write() const {
    MESHRUN_UNROLL
    for (int k = 0; k < kChunksOfThread; ++k) {
      const auto [segment, lane] = body_.by_lane.divide(index(k));
      if (static_cast<int>(segment) >= segments_) continue;
      T* const row = output_of(segment);
      const Chunk<N> chunk = chunk_at<N, kAligned>(row, body_.inner, first_chunk_ + lane);
      if (chunk.begin >= body_.inner) continue;
      write_chunk<N, kAligned>(row, chunk, __builtin_bit_cast(Part, sums_[k].rounded()));
    }
  }

 private:
  MESHRUN_HOST_DEVICE uint32_t index(int k) const {
    return static_cast<uint32_t>(thread_ + k * kBlock);
  }
  MESHRUN_HOST_DEVICE T* output_of(uint32_t segment) const {
    return body_.output.at(outer_, first_segment_ + segment);
  }

  // The chunk `lane` of a row that begins `behind` elements after an aligned address.
  MESHRUN_HOST_DEVICE Value in(const Tile& tile, int row, int lane, int behind) const {
    if constexpr (kAligned) {
      return __builtin_bit_cast(Value, tile.access(row * body_.slot + lane));
    } else {
      // In the slot, in elements, one access further so that it is not negative.
      const int element = (lane + body_.lead + 1) * N + tile.misalignments[row] - behind;
      const int low = element / N - 1;
      Part parts[2] = {};
      if (low >= 0) parts[0] = tile.access(row * body_.slot + low);
      if (low + 1 < body_.slot) parts[1] = tile.access(row * body_.slot + low + 1);
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
