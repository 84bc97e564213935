// What one thread of each kernel does: functions of the thread's number, without CUDA's variables,
// so that the host can run every thread of a launch (tests/parallel/kernels/cuda_bodies_test).
//
// A body has `count` threads; load() reads and computes, store() writes. They are apart so that a
// thread can load several before it stores the first. Strides are in vectors, extents in vectors
// where they are of elements next to each other.
#pragma once

#include <cstdint>

#include "parallel/kernels/cuda/indexing.h"

namespace meshrun::cuda {

template <typename T>
struct Slices {
  T* data = nullptr;
  int64_t outer_stride = 0;
  int64_t slice_stride = 0;

  MESHRUN_HOST_DEVICE T* at(int64_t outer, int64_t slice) const {
    return data + outer * outer_stride + slice * slice_stride;
  }
};

// output[outer, i, :] = input[outer, index[i], :]
template <typename In, typename Out, int N, typename IndexType>
struct GatherRowsBody {
  using Index = IndexType;
  using Value = Vector<Out, N>;

  Slices<Vector<Out, N>> output;
  Slices<const Vector<In, N>> input;
  const int64_t* index;
  Divider<Index> slice;  // by the vectors of a slice
  Divider<Index> outer;  // by the number of slices
  Index count;

  MESHRUN_HOST_DEVICE Value load(Index thread) const {
    const auto [row, vector] = slice.divide(thread);
    const auto [o, i] = outer.divide(row);
    const Vector<In, N> loaded = input.at(o, index[i])[vector];
    Value value;
    for (int e = 0; e < N; ++e) value.element[e] = static_cast<Out>(loaded.element[e]);
    return value;
  }
  MESHRUN_HOST_DEVICE void store(Index thread, const Value& value) const {
    const auto [row, vector] = slice.divide(thread);
    const auto [o, i] = outer.divide(row);
    output.at(o, i)[vector] = value;
  }
};

// float16 and bfloat16 become float32 where Sum is float; bool adds as "or".
template <typename Sum, typename T>
MESHRUN_HOST_DEVICE Sum plus(Sum sum, T value) {
  return static_cast<Sum>(sum + static_cast<Sum>(value));
}
template <>
MESHRUN_HOST_DEVICE bool plus<bool, bool>(bool sum, bool value) {
  return sum || value;
}

// Adds vectors in the order they come in.
template <typename T, typename Sum, int N>
struct VectorSum {
  Sum sum[N];

  MESHRUN_HOST_DEVICE VectorSum() {
    for (int e = 0; e < N; ++e) sum[e] = static_cast<Sum>(0);
  }
  MESHRUN_HOST_DEVICE void start(const Vector<T, N>& first) {
    for (int e = 0; e < N; ++e) sum[e] = static_cast<Sum>(first.element[e]);
  }
  MESHRUN_HOST_DEVICE void add(const Vector<T, N>& next) {
    for (int e = 0; e < N; ++e) sum[e] = plus<Sum, T>(sum[e], next.element[e]);
  }
  MESHRUN_HOST_DEVICE Vector<T, N> rounded() const {
    Vector<T, N> value;
    for (int e = 0; e < N; ++e) value.element[e] = static_cast<T>(sum[e]);
    return value;
  }
};

// How many loads of a sum are under way at once.
constexpr int kLoadsAhead = 4;

// The vectors at(0), at(1), ... at(number - 1), in that order; zero where there are none.
template <typename T, typename Sum, int N, typename At>
MESHRUN_HOST_DEVICE Vector<T, N> sum_of(int64_t number, const At& at) {
  VectorSum<T, Sum, N> sum;
  if (number == 0) return sum.rounded();
  sum.start(at(0));
  int64_t next = 1;
  for (; next + kLoadsAhead <= number; next += kLoadsAhead) {
    Vector<T, N> loaded[kLoadsAhead];
    MESHRUN_UNROLL
    for (int i = 0; i < kLoadsAhead; ++i) loaded[i] = at(next + i);
    MESHRUN_UNROLL
    for (int i = 0; i < kLoadsAhead; ++i) sum.add(loaded[i]);
  }
  for (; next < number; ++next) sum.add(at(next));
  return sum.rounded();
}

// output[outer, r, :] = the slices positions[offsets[r]], ... positions[offsets[r + 1] - 1], of
// `first` and, from position `first_extent` on, of `second`.
template <typename T, typename Sum, int N, typename IndexType>
struct SegmentedSumBody {
  using Index = IndexType;
  using Value = Vector<T, N>;

  Slices<Vector<T, N>> output;
  Slices<const Vector<T, N>> first;
  Slices<const Vector<T, N>> second;
  int64_t first_extent;
  const int64_t* offsets;
  const int64_t* positions;
  Divider<Index> slice;  // by the vectors of a slice
  Divider<Index> outer;  // by the number of segments
  Index count;

  MESHRUN_HOST_DEVICE Value load(Index thread) const {
    const auto [row, vector] = slice.divide(thread);
    const auto [o, segment] = outer.divide(row);
    const int64_t begin = offsets[segment];
    const auto at = [&, o = o, vector = vector](int64_t i) -> Vector<T, N> {
      const int64_t position = positions[begin + i];
      return position < first_extent ? first.at(o, position)[vector]
                                     : second.at(o, position - first_extent)[vector];
    };
    return sum_of<T, Sum, N>(offsets[segment + 1] - begin, at);
  }
  MESHRUN_HOST_DEVICE void store(Index thread, const Value& value) const {
    const auto [row, vector] = slice.divide(thread);
    const auto [o, segment] = outer.divide(row);
    output.at(o, segment)[vector] = value;
  }
};

// output[:] = parts[0, :] + parts[1, :] + ...
template <typename T, typename Sum, int N, typename IndexType>
struct SumInOrderBody {
  using Index = IndexType;
  using Value = Vector<T, N>;

  Vector<T, N>* output;
  const Vector<T, N>* parts;
  int64_t pitch;
  int64_t number;
  Index count;

  MESHRUN_HOST_DEVICE Value load(Index thread) const {
    return sum_of<T, Sum, N>(
        number, [&](int64_t part) -> Vector<T, N> { return parts[part * pitch + thread]; });
  }
  MESHRUN_HOST_DEVICE void store(Index thread, const Value& value) const { output[thread] = value; }
};

// One slice along the dim and its place in the buffer, in vectors.
struct VectorPiece {
  int64_t begin;   // within a row of the tensor
  int64_t offset;  // in the buffer
  int64_t vectors;
  Divider<uint64_t> wide_row;  // by the vectors that a row of the slice has
  Divider<uint32_t> row;
};

// As many as fit into a kernel's parameters with room to spare.
constexpr int kPiecesAtOnce = 32;

// Between a tensor of `outer` rows and the packed slices: all threads of block row y move piece y.
template <typename Unit, typename IndexType, bool kPacks>
struct PermuteBody {
  using Index = IndexType;
  using Value = Unit;

  Unit* packed;
  Unit* tensor;
  int64_t row_stride;  // of the tensor
  VectorPiece pieces[kPiecesAtOnce];

  MESHRUN_HOST_DEVICE Index count(int piece) const {
    return static_cast<Index>(pieces[piece].vectors);
  }
  MESHRUN_HOST_DEVICE Unit* in_buffer(int piece, Index thread) const {
    return packed + pieces[piece].offset + thread;
  }
  MESHRUN_HOST_DEVICE Unit* in_tensor(int piece, Index thread) const {
    const VectorPiece& p = pieces[piece];
    int64_t row, column;
    if constexpr (sizeof(Index) == sizeof(uint32_t)) {
      const auto [quotient, remainder] = p.row.divide(thread);
      row = quotient, column = remainder;
    } else {
      const auto [quotient, remainder] = p.wide_row.divide(thread);
      row = static_cast<int64_t>(quotient), column = static_cast<int64_t>(remainder);
    }
    return tensor + row * row_stride + p.begin + column;
  }
  MESHRUN_HOST_DEVICE Value load(int piece, Index thread) const {
    return kPacks ? *in_tensor(piece, thread) : *in_buffer(piece, thread);
  }
  MESHRUN_HOST_DEVICE void store(int piece, Index thread, const Value& value) const {
    *(kPacks ? in_buffer(piece, thread) : in_tensor(piece, thread)) = value;
  }
};

}  // namespace meshrun::cuda
