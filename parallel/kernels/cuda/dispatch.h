// From a call to a kernel: the width of its accesses, the types, the index arithmetic.
//
// `Launch` runs a body: launch(body) all its threads, launch.pieces(body, number) those of all
// pieces, launch.segments(body) its blocks. CUDA's is in the .cu files; the host's, loops, in the
// test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "c10/util/complex.h"
#include "parallel/kernels/cuda/bodies.h"
#include "parallel/kernels/cuda/calls.h"
#include "parallel/kernels/cuda/segments.h"

namespace meshrun::cuda {

// The largest power of two up to 16 that divides all.
inline int64_t widest_access(std::initializer_list<int64_t> bytes) {
  int64_t bits = 16;
  for (const int64_t b : bytes) bits |= b;
  return bits & -bits;
}

inline int64_t address(const void* data) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
}

inline int64_t widest_access(const Strided& strided, int64_t element_size) {
  return widest_access({address(strided.data), strided.outer_stride * element_size,
                        strided.slice_stride * element_size});
}

// What fits into 31 bits is divided by multiplication.
inline bool is_small(int64_t count) { return count < int64_t{1} << 31; }

template <typename T>
Slices<T> slices_of(const Strided& strided) {
  return {static_cast<T*>(strided.data), strided.outer_stride, strided.slice_stride};
}

// Rows shorter than so many full accesses are moved element by element.
constexpr int64_t kFewAccesses = 2;

// run.operator()<N, kAligned>() for rows of `inner` elements, of at most kFull in an access, that
// begin at multiples of `access` elements and have such a multiple.
template <int kFull, typename Run>
void with_chunks(int64_t access, int64_t inner, const Run& run) {
  if constexpr (kFull > 1) {
    if (access >= kFull) return run.template operator()<kFull, true>();
    if (inner >= kFewAccesses * kFull) return run.template operator()<kFull, false>();
  }
  run.template operator()<1, true>();
}

struct alignas(16) Bytes16 {
  uint32_t part[4];
};

// run.operator()<Unit>() for the unit of `bytes` bytes.
template <typename Run>
void with_unit(int64_t bytes, const Run& run) {
  switch (bytes) {
    case 16:
      return run.template operator()<Bytes16>();
    case 8:
      return run.template operator()<uint64_t>();
    case 4:
      return run.template operator()<uint32_t>();
    case 2:
      return run.template operator()<uint16_t>();
    default:
      return run.template operator()<uint8_t>();
  }
}

// ---- gather of rows

template <typename In, typename Out, int N, bool kAligned, typename Index, typename Launch>
void gather_with(const GatherRows& call, const Launch& launch) {
  const int64_t chunks = chunks_of<N, kAligned>(call.inner);
  GatherRowsBody<In, Out, N, kAligned, Index> body;
  body.output = slices_of<Out>(call.output);
  body.input = slices_of<const In>(call.input);
  body.index = call.index;
  body.inner = call.inner;
  body.by_slice = Divider<Index>(static_cast<Index>(chunks));
  body.by_outer = Divider<Index>(static_cast<Index>(call.slices));
  body.count = static_cast<Index>(call.outer * call.slices * chunks);
  launch(body);
}

// In and Out of `call`, at least aligned to elements.
template <typename In, typename Out, typename Launch>
void gather_with(const GatherRows& call, const Launch& launch) {
  constexpr int kFull = 16 / static_cast<int>(std::max(sizeof(In), sizeof(Out)));
  const int64_t access = std::min({widest_access(call.input, sizeof(In)) / int64_t{sizeof(In)},
                                   widest_access(call.output, sizeof(Out)) / int64_t{sizeof(Out)},
                                   widest_access({call.inner})});
  with_chunks<kFull>(access, call.inner, [&]<int N, bool kAligned>() {
    if (is_small(call.outer * call.slices * chunks_of<N, kAligned>(call.inner))) {
      gather_with<In, Out, N, kAligned, uint32_t>(call, launch);
    } else {
      gather_with<In, Out, N, kAligned, uint64_t>(call, launch);
    }
  });
}

// False: not between two dtypes.
template <typename In, typename Out, typename Launch>
bool gather_converted(const GatherRows& call, const Launch& launch) {
  if constexpr (!std::is_same_v<In, Out>) {
    gather_with<In, Out>(call, launch);
    return true;
  }
  return false;
}

// In units of some bytes, whatever the dtype.
template <typename Unit, typename Launch>
void gather_copied(const GatherRows& call, int64_t element_size, const Launch& launch) {
  // Units may be wider or narrower than elements.
  GatherRows units = call;
  constexpr auto kWidth = static_cast<int64_t>(sizeof(Unit));
  for (Strided* strided : {&units.output, &units.input}) {
    strided->outer_stride = strided->outer_stride * element_size / kWidth;
    strided->slice_stride = strided->slice_stride * element_size / kWidth;
  }
  units.inner = call.inner * element_size / kWidth;
  gather_with<Unit, Unit>(units, launch);
}

template <typename Launch>
bool dispatch(const GatherRows& call, const Launch& launch) {
  using c10::ScalarType;
  if (call.outer * call.slices * call.inner == 0) return true;
  if (call.input_type == call.output_type) {
    const auto size = static_cast<int64_t>(c10::elementSize(call.input_type));
    with_unit(std::min({widest_access(call.input, size), widest_access(call.output, size),
                        widest_access({call.inner * size})}),
              [&]<typename Unit>() { gather_copied<Unit>(call, size, launch); });
    return true;
  }
  const auto to = [&]<typename In>() {
    switch (call.output_type) {
      case ScalarType::Float:
        return gather_converted<In, float>(call, launch);
      case ScalarType::Double:
        return gather_converted<In, double>(call, launch);
      case ScalarType::Half:
        return gather_converted<In, c10::Half>(call, launch);
      case ScalarType::BFloat16:
        return gather_converted<In, c10::BFloat16>(call, launch);
      default:
        return false;
    }
  };
  switch (call.input_type) {
    case ScalarType::Float:
      return to.template operator()<float>();
    case ScalarType::Double:
      return to.template operator()<double>();
    case ScalarType::Half:
      return to.template operator()<c10::Half>();
    case ScalarType::BFloat16:
      return to.template operator()<c10::BFloat16>();
    default:
      return false;
  }
}

// ---- sums

// sum.operator()<T, Sum>() for what `type` is added as; false: nothing.
template <typename Add>
bool with_types_of_sum(c10::ScalarType type, bool use_fp32, const Add& add) {
  using c10::ScalarType;
  switch (type) {
    case ScalarType::Half:
      if (use_fp32) return add.template operator()<c10::Half, float>();
      return add.template operator()<c10::Half, c10::Half>();
    case ScalarType::BFloat16:
      if (use_fp32) return add.template operator()<c10::BFloat16, float>();
      return add.template operator()<c10::BFloat16, c10::BFloat16>();
    case ScalarType::Float:
      return add.template operator()<float, float>();
    case ScalarType::Double:
      return add.template operator()<double, double>();
    case ScalarType::Byte:
      return add.template operator()<uint8_t, uint8_t>();
    case ScalarType::Char:
      return add.template operator()<int8_t, int8_t>();
    case ScalarType::Short:
      return add.template operator()<int16_t, int16_t>();
    case ScalarType::Int:
      return add.template operator()<int32_t, int32_t>();
    case ScalarType::Long:
      return add.template operator()<int64_t, int64_t>();
    case ScalarType::Bool:
      return add.template operator()<bool, bool>();
    case ScalarType::ComplexFloat:
      return add.template operator()<c10::complex<float>, c10::complex<float>>();
    case ScalarType::ComplexDouble:
      return add.template operator()<c10::complex<double>, c10::complex<double>>();
    default:
      return false;
  }
}

inline int64_t ceil_div(int64_t dividend, int64_t divisor) {
  return (dividend + divisor - 1) / divisor;
}

// Fewer chunks than fill so many blocks are spread over more blocks, down to a chunk a thread.
constexpr int64_t kManyBlocks = 1024;

template <typename T, typename Sum, int N, bool kAligned, typename Launch>
void segmented_sum_with(const SegmentedSum& call, const Launch& launch) {
  SegmentedSumBody<T, Sum, N, kAligned> body;
  body.output = slices_of<T>(call.output);
  body.first = slices_of<const T>(call.first);
  body.second = slices_of<const T>(call.second);
  body.first_extent = call.first_extent;
  body.offsets = call.offsets;
  body.positions = call.positions;
  body.segments = call.segments;
  body.inner = call.inner;
  const int64_t chunks = chunks_of<N, kAligned>(call.inner);
  const int64_t column_groups = ceil_div(chunks, kMostColumns);
  body.columns = static_cast<int>(ceil_div(chunks, column_groups));
  // A row that is cut into groups needs the accesses beside a group's own, to be shifted.
  const bool has_neighbours = !kAligned && column_groups > 1;
  body.lead = has_neighbours ? 1 : 0;
  body.accesses_of_row = body.columns + (has_neighbours ? 2 : 0);
  body.rows_of_tile = kBlock * kReadsOfThread / body.accesses_of_row;
  const int64_t chunks_of_block = std::clamp<int64_t>(
      call.outer * call.segments * chunks / kManyBlocks, kBlock, int64_t{kBlock} * kChunksOfThread);
  body.segments_of_block = static_cast<int>(chunks_of_block / body.columns);
  const int64_t segment_groups = ceil_div(call.segments, body.segments_of_block);
  body.by_column = Divider<uint32_t>(static_cast<uint32_t>(body.columns));
  body.by_row = Divider<uint32_t>(static_cast<uint32_t>(body.accesses_of_row));
  body.blocks = static_cast<uint64_t>(call.outer * segment_groups * column_groups);
  body.by_column_group = SizedDivider(static_cast<uint64_t>(column_groups), body.blocks);
  body.by_segment_group = SizedDivider(static_cast<uint64_t>(segment_groups), body.blocks);
  launch.segments(body);
}

template <typename Launch>
bool dispatch(const SegmentedSum& call, const Launch& launch) {
  return with_types_of_sum(call.type, call.use_fp32, [&]<typename T, typename Sum>() {
    if (call.outer * call.segments * call.inner == 0) return true;
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    const int64_t access =
        std::min({widest_access(call.output, kSize), widest_access(call.first, kSize),
                  widest_access(call.second, kSize), widest_access({call.inner * kSize})});
    with_chunks<16 / static_cast<int>(kSize)>(
        access / kSize, call.inner,
        [&]<int N, bool kAligned>() { segmented_sum_with<T, Sum, N, kAligned>(call, launch); });
    return true;
  });
}

template <typename T, typename Sum, int N, typename Index, typename Launch>
void sum_in_order_with(const SumInOrder& call, const Launch& launch) {
  SumInOrderBody<T, Sum, N, Index> body;
  body.output = static_cast<Access<T, N>*>(call.output);
  body.parts = static_cast<const Access<T, N>*>(call.parts);
  body.pitch = call.pitch / N;
  body.number = call.number;
  body.count = static_cast<Index>(call.elements / N);
  launch(body);
}

template <typename T, typename Sum, int N, typename Launch>
void sum_in_order_with(const SumInOrder& call, const Launch& launch) {
  if (is_small(call.elements / N)) {
    sum_in_order_with<T, Sum, N, uint32_t>(call, launch);
  } else {
    sum_in_order_with<T, Sum, N, uint64_t>(call, launch);
  }
}

template <typename Launch>
bool dispatch(const SumInOrder& call, const Launch& launch) {
  return with_types_of_sum(call.type, call.use_fp32, [&]<typename T, typename Sum>() {
    if (call.elements == 0) return true;
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    constexpr int kFull = 16 / static_cast<int>(kSize);
    const int64_t access = widest_access(
        {address(call.output), address(call.parts), call.pitch * kSize, call.elements * kSize});
    if (access == 16) {
      sum_in_order_with<T, Sum, kFull>(call, launch);
    } else {
      sum_in_order_with<T, Sum, 1>(call, launch);
    }
    return true;
  });
}

// ---- slices of a dim to and from a buffer

template <typename Unit, int N, bool kAligned, bool kPacks, typename Launch>
void permute_with(const Permute& call, const Launch& launch) {
  constexpr auto kWidth = static_cast<int64_t>(sizeof(Unit));
  const auto units = [&](int64_t elements) { return elements * call.element_size / kWidth; };
  const auto run = [&]<typename Index>(const auto* begin, const auto* end) {
    PermuteBody<Unit, N, kAligned, Index, kPacks> body;
    body.packed = static_cast<Unit*>(call.packed);
    body.tensor = static_cast<Unit*>(call.tensor);
    body.row_stride = units(call.extent * call.inner);
    for (const auto* piece = begin; piece != end; ++piece) {
      auto& made = body.pieces[piece - begin];
      made.begin = units(piece->begin * call.inner);
      made.offset = units(piece->offset);
      made.row = units(piece->size * call.inner);
      const int64_t chunks = chunks_of<N, kAligned>(made.row);
      made.chunks = chunks * call.outer;
      made.by_row = Divider<Index>(static_cast<Index>(chunks));
    }
    launch.pieces(body, static_cast<int>(end - begin));
  };
  const Permute::Piece* const end = call.pieces.data() + call.pieces.size();
  for (const Permute::Piece* begin = call.pieces.data(); begin != end;) {
    const Permute::Piece* const until = std::min(begin + kPiecesAtOnce, end);
    const bool small = std::all_of(begin, until, [&](const Permute::Piece& piece) {
      return is_small(call.outer * chunks_of<N, kAligned>(units(piece.size * call.inner)));
    });
    if (small) {
      run.template operator()<uint32_t>(begin, until);
    } else {
      run.template operator()<uint64_t>(begin, until);
    }
    begin = until;
  }
}

template <typename Launch>
bool dispatch(const Permute& given, const Launch& launch) {
  Permute call = given;
  const auto is_empty = [&](const Permute::Piece& piece) {
    return call.outer * piece.size * call.inner == 0;
  };
  call.pieces.erase(std::remove_if(call.pieces.begin(), call.pieces.end(), is_empty),
                    call.pieces.end());
  const int64_t slice = call.inner * call.element_size;
  int64_t access = widest_access({address(call.packed), address(call.tensor)});
  // The one row's length does not matter.
  if (call.outer > 1) access = std::min(access, widest_access({call.extent * slice}));
  int64_t longest = 0;
  for (const Permute::Piece& piece : call.pieces) {
    access = std::min(access, widest_access({piece.begin * slice, piece.size * slice,
                                             piece.offset * call.element_size}));
    longest = std::max(longest, piece.size * slice);
  }
  with_unit(access, [&]<typename Unit>() {
    constexpr auto kFull = 16 / static_cast<int>(sizeof(Unit));
    // A unit of less than 16 bytes means that some address or length is not aligned to more.
    with_chunks<kFull>(1, longest / static_cast<int64_t>(sizeof(Unit)),
                       [&]<int N, bool kAligned>() {
                         if (call.packs) {
                           permute_with<Unit, N, kAligned, true>(call, launch);
                         } else {
                           permute_with<Unit, N, kAligned, false>(call, launch);
                         }
                       });
  });
  return true;
}

}  // namespace meshrun::cuda
