// From a call to a kernel: the width of its accesses, the types, the index arithmetic.
//
// `Launch` runs a body: launch(body) all its threads, launch.pieces(body, number) those of all
// pieces. CUDA's is in the .cu files; the host's, a loop, in the test.
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

template <typename V>
Slices<V> slices_of(const Strided& strided, int64_t elements_of_v) {
  return {static_cast<V*>(strided.data), strided.outer_stride / elements_of_v,
          strided.slice_stride / elements_of_v};
}

struct alignas(16) Bytes16 {
  uint32_t part[4];
};

// ---- gather of rows

template <typename In, typename Out, int N, typename Index, typename Launch>
void gather_with(const GatherRows& call, int64_t elements_of_in, int64_t elements_of_out,
                 int64_t vectors, const Launch& launch) {
  GatherRowsBody<In, Out, N, Index> body;
  body.output = slices_of<Vector<Out, N>>(call.output, elements_of_out);
  body.input = slices_of<const Vector<In, N>>(call.input, elements_of_in);
  body.index = call.index;
  body.slice = Divider<Index>(static_cast<Index>(vectors));
  body.outer = Divider<Index>(static_cast<Index>(call.slices));
  body.count = static_cast<Index>(call.outer * call.slices * vectors);
  launch(body);
}

template <typename In, typename Out, int N, typename Launch>
void gather_converted(const GatherRows& call, const Launch& launch) {
  const int64_t vectors = call.inner / N;
  if (is_small(call.outer * call.slices * vectors)) {
    gather_with<In, Out, N, uint32_t>(call, N, N, vectors, launch);
  } else {
    gather_with<In, Out, N, uint64_t>(call, N, N, vectors, launch);
  }
}

// False: not between two dtypes.
template <typename In, typename Out, typename Launch>
bool gather_converted(const GatherRows& call, const Launch& launch) {
  if constexpr (!std::is_same_v<In, Out>) {
    constexpr int kFull = 16 / static_cast<int>(std::max(sizeof(In), sizeof(Out)));
    const bool is_wide =
        call.inner % kFull == 0 &&
        widest_access(call.input, sizeof(In)) >= kFull * static_cast<int64_t>(sizeof(In)) &&
        widest_access(call.output, sizeof(Out)) >= kFull * static_cast<int64_t>(sizeof(Out));
    if (is_wide) {
      gather_converted<In, Out, kFull>(call, launch);
    } else {
      gather_converted<In, Out, 1>(call, launch);
    }
    return true;
  }
  return false;
}

// `width` bytes at a time, whatever the dtype.
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
  gather_converted<Unit, Unit, 1>(units, launch);
}

template <typename Launch>
bool dispatch(const GatherRows& call, const Launch& launch) {
  using c10::ScalarType;
  if (call.outer * call.slices * call.inner == 0) return true;
  if (call.input_type == call.output_type) {
    const auto size = static_cast<int64_t>(c10::elementSize(call.input_type));
    switch (std::min({widest_access(call.input, size), widest_access(call.output, size),
                      widest_access({call.inner * size})})) {
      case 16:
        gather_copied<Bytes16>(call, size, launch);
        break;
      case 8:
        gather_copied<uint64_t>(call, size, launch);
        break;
      case 4:
        gather_copied<uint32_t>(call, size, launch);
        break;
      case 2:
        gather_copied<uint16_t>(call, size, launch);
        break;
      default:
        gather_copied<uint8_t>(call, size, launch);
    }
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

template <typename T, typename Sum, int N, typename Index, typename Launch>
void segmented_sum_with(const SegmentedSum& call, const Launch& launch) {
  const int64_t vectors = call.inner / N;
  SegmentedSumBody<T, Sum, N, Index> body;
  body.output = slices_of<Vector<T, N>>(call.output, N);
  body.first = slices_of<const Vector<T, N>>(call.first, N);
  body.second = slices_of<const Vector<T, N>>(call.second, N);
  body.first_extent = call.first_extent;
  body.offsets = call.offsets;
  body.positions = call.positions;
  body.slice = Divider<Index>(static_cast<Index>(vectors));
  body.outer = Divider<Index>(static_cast<Index>(call.segments));
  body.count = static_cast<Index>(call.outer * call.segments * vectors);
  launch(body);
}

template <typename T, typename Sum, int N, typename Launch>
void segmented_sum_with(const SegmentedSum& call, const Launch& launch) {
  if (is_small(call.outer * call.segments * (call.inner / N))) {
    segmented_sum_with<T, Sum, N, uint32_t>(call, launch);
  } else {
    segmented_sum_with<T, Sum, N, uint64_t>(call, launch);
  }
}

template <typename Launch>
bool dispatch(const SegmentedSum& call, const Launch& launch) {
  return with_types_of_sum(call.type, call.use_fp32, [&]<typename T, typename Sum>() {
    if (call.outer * call.segments * call.inner == 0) return true;
    constexpr auto kSize = static_cast<int64_t>(sizeof(T));
    constexpr int kFull = 16 / static_cast<int>(kSize);
    const int64_t access =
        std::min({widest_access(call.output, kSize), widest_access(call.first, kSize),
                  widest_access(call.second, kSize), widest_access({call.inner * kSize})});
    if (access == 16) {
      segmented_sum_with<T, Sum, kFull>(call, launch);
    } else {
      segmented_sum_with<T, Sum, 1>(call, launch);
    }
    return true;
  });
}

template <typename T, typename Sum, int N, typename Index, typename Launch>
void sum_in_order_with(const SumInOrder& call, const Launch& launch) {
  SumInOrderBody<T, Sum, N, Index> body;
  body.output = static_cast<Vector<T, N>*>(call.output);
  body.parts = static_cast<const Vector<T, N>*>(call.parts);
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

template <typename Unit, bool kPacks, typename Launch>
void permute_with(const Permute& call, const Launch& launch) {
  constexpr auto kWidth = static_cast<int64_t>(sizeof(Unit));
  const auto units = [&](int64_t elements) { return elements * call.element_size / kWidth; };
  const auto run = [&]<typename Index>(const auto* begin, const auto* end) {
    PermuteBody<Unit, Index, kPacks> body;
    body.packed = static_cast<Unit*>(call.packed);
    body.tensor = static_cast<Unit*>(call.tensor);
    body.row_stride = units(call.extent * call.inner);
    for (const auto* piece = begin; piece != end; ++piece) {
      const int64_t row = units(piece->size * call.inner);
      VectorPiece& made = body.pieces[piece - begin];
      made.begin = units(piece->begin * call.inner);
      made.offset = units(piece->offset);
      made.vectors = row * call.outer;
      made.wide_row = Divider<uint64_t>(static_cast<uint64_t>(row));
      if (is_small(row)) made.row = Divider<uint32_t>(static_cast<uint32_t>(row));
    }
    launch.pieces(body, static_cast<int>(end - begin));
  };
  const Permute::Piece* const end = call.pieces.data() + call.pieces.size();
  for (const Permute::Piece* begin = call.pieces.data(); begin != end;) {
    const Permute::Piece* const until = std::min(begin + kPiecesAtOnce, end);
    const bool small = std::all_of(begin, until, [&](const Permute::Piece& piece) {
      return is_small(call.outer * units(piece.size * call.inner));
    });
    if (small) {
      run.template operator()<uint32_t>(begin, until);
    } else {
      run.template operator()<uint64_t>(begin, until);
    }
    begin = until;
  }
}

template <typename Unit, typename Launch>
void permute_with(const Permute& call, const Launch& launch) {
  if (call.packs) {
    permute_with<Unit, true>(call, launch);
  } else {
    permute_with<Unit, false>(call, launch);
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
  for (const Permute::Piece& piece : call.pieces) {
    access = std::min(access, widest_access({piece.begin * slice, piece.size * slice,
                                             piece.offset * call.element_size}));
  }
  switch (access) {
    case 16:
      permute_with<Bytes16>(call, launch);
      break;
    case 8:
      permute_with<uint64_t>(call, launch);
      break;
    case 4:
      permute_with<uint32_t>(call, launch);
      break;
    case 2:
      permute_with<uint16_t>(call, launch);
      break;
    default:
      permute_with<uint8_t>(call, launch);
  }
  return true;
}

}  // namespace meshrun::cuda
