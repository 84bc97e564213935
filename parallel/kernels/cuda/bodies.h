// What one thread of each kernel does: functions of the thread's number, without CUDA's variables,
// so that the host can run every thread of a launch (tests/parallel/kernels/cuda_bodies_test).
//
// A body has `count` threads; load() reads and computes, store() writes. They are apart so that a
// thread can load several before it stores the first. Strides are in elements.
#pragma once

#include <cstdint>
#include <type_traits>

#include "parallel/kernels/cuda/chunks.h"
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
template <typename In, typename Out, int N, bool kAligned, typename IndexType>
struct GatherRowsBody {
  using Index = IndexType;
  using Value = Access<Out, N>;

  Slices<Out> output;
  Slices<const In> input;
  const int64_t* index;
  int64_t inner;
  Divider<Index> by_slice;  // by the chunks of a slice
  Divider<Index> by_outer;  // by the number of slices
  Index count;

  MESHRUN_HOST_DEVICE Value load(Index thread) const {
    const auto [row, chunk] = by_slice.divide(thread);
    const auto [o, i] = by_outer.divide(row);
    const Chunk<N> place = chunk_at<N, kAligned>(output.at(o, i), inner, chunk);
    if (place.first >= place.last) return {};
    const auto loaded = read_chunk<N, kAligned>(input.at(o, index[i]), inner, place.begin);
    if constexpr (std::is_same_v<In, Out>) {
      return loaded;
    } else {
      const auto elements = __builtin_bit_cast(Vector<In, N>, loaded);
      Vector<Out, N> converted;
      MESHRUN_UNROLL
      for (int e = 0; e < N; ++e) converted.element[e] = static_cast<Out>(elements.element[e]);
      return __builtin_bit_cast(Value, converted);
    }
  }
  MESHRUN_HOST_DEVICE void store(Index thread, const Value& value) const {
    const auto [row, chunk] = by_slice.divide(thread);
    const auto [o, i] = by_outer.divide(row);
    Out* const written = output.at(o, i);
    write_chunk<N, kAligned>(written, chunk_at<N, kAligned>(written, inner, chunk), value);
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

// output[:] = parts[0, :] + parts[1, :] + ...
template <typename T, typename Sum, int N, typename IndexType>
struct SumInOrderBody {
  using Index = IndexType;
  using Value = Access<T, N>;

  Access<T, N>* output;
  const Access<T, N>* parts;
  int64_t pitch;
  int64_t number;
  Index count;

  MESHRUN_HOST_DEVICE Value load(Index thread) const {
    const auto part = [&](int64_t i) {
      return __builtin_bit_cast(Vector<T, N>, parts[i * pitch + thread]);
    };
    return __builtin_bit_cast(Value, sum_of<T, Sum, N>(number, part));
  }
  MESHRUN_HOST_DEVICE void store(Index thread, const Value& value) const {
    cuda::store(output + thread, value);
  }
};

// One slice along the dim and its place in the buffer, in elements.
template <typename Index>
struct PlacedPiece {
  int64_t begin;          // within a row of the tensor
  int64_t offset;         // in the buffer
  int64_t row;            // of the slice
  int64_t chunks;         // of all rows
  Divider<Index> by_row;  // by the chunks that a row of the slice has
};

// As many as fit into a kernel's parameters with room to spare.
constexpr int kPiecesAtOnce = 32;

// Between a tensor of `outer` rows and the packed slices: all threads of block row y move piece y.
template <typename Unit, int N, bool kAligned, typename IndexType, bool kPacks>
struct PermuteBody {
  using Index = IndexType;
  using Value = Access<Unit, N>;

  Unit* packed;
  Unit* tensor;
  int64_t row_stride;  // of the tensor
  PlacedPiece<Index> pieces[kPiecesAtOnce];

  struct Rows {
    Unit* in_buffer;
    Unit* in_tensor;
    int64_t chunk;

    MESHRUN_HOST_DEVICE const Unit* read() const { return kPacks ? in_tensor : in_buffer; }
    MESHRUN_HOST_DEVICE Unit* written() const { return kPacks ? in_buffer : in_tensor; }
  };

  MESHRUN_HOST_DEVICE Index count(int piece) const {
    return static_cast<Index>(pieces[piece].chunks);
  }
  MESHRUN_HOST_DEVICE Rows at(int piece, Index thread) const {
    const PlacedPiece<Index>& p = pieces[piece];
    const auto [row, chunk] = p.by_row.divide(thread);
    const auto r = static_cast<int64_t>(row);
    return {packed + p.offset + r * p.row, tensor + r * row_stride + p.begin,
            static_cast<int64_t>(chunk)};
  }
  MESHRUN_HOST_DEVICE Value load(int piece, Index thread) const {
    const Rows rows = at(piece, thread);
    const int64_t row = pieces[piece].row;
    const Chunk<N> place = chunk_at<N, kAligned>(rows.written(), row, rows.chunk);
    if (place.first >= place.last) return {};
    return read_chunk<N, kAligned>(rows.read(), row, place.begin);
  }
  MESHRUN_HOST_DEVICE void store(int piece, Index thread, const Value& value) const {
    const Rows rows = at(piece, thread);
    write_chunk<N, kAligned>(rows.written(),
                             chunk_at<N, kAligned>(rows.written(), pieces[piece].row, rows.chunk),
                             value);
  }
};

}  // namespace meshrun::cuda
