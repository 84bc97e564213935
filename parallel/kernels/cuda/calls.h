// The kernels' arguments, and their launches, without CUDA's or LibTorch's headers in the way.
//
// A tensor is (outer, extent, inner): `outer` rows of `extent` slices along the dim, each of
// `inner` elements that lie next to each other. Strides are in elements. Memory is on the current
// device. Accesses are of 16 bytes, save for short rows at other addresses: kernels may read, and
// never write, what else is in an aligned block of 16 bytes that holds some of a row, and others
// may write it meanwhile.
//
// Launches queue on `stream` and wait for nothing; arguments travel with the launch, so a CUDA
// graph can capture them. False: there is no kernel for the dtype, and nothing was queued. Errors:
// CUDA's, from cudaGetLastError().
#pragma once

#include <cstdint>
#include <vector>

#include "c10/core/ScalarType.h"

struct CUstream_st;

namespace meshrun::cuda {

struct Strided {
  void* data = nullptr;
  int64_t outer_stride = 0;
  int64_t slice_stride = 0;
};

// output[o, i, :] = input[o, index[i], :], of one dtype, or converted between floating ones.
struct GatherRows {
  Strided output;
  c10::ScalarType output_type;
  Strided input;
  c10::ScalarType input_type;
  const int64_t* index;
  int64_t outer, slices, inner;
};
bool launch(const GatherRows& call, CUstream_st* stream);

// See SegmentedSumBody. With use_fp32, float16 and bfloat16 are added in float32, rounded once.
struct SegmentedSum {
  Strided output;
  Strided first;
  Strided second;
  int64_t first_extent;
  const int64_t* offsets;
  const int64_t* positions;
  c10::ScalarType type;
  bool use_fp32;
  int64_t outer, segments, inner;
};
bool launch(const SegmentedSum& call, CUstream_st* stream);

// output = parts[0] + parts[1] + ...; parts are `pitch` elements apart.
struct SumInOrder {
  void* output;
  const void* parts;
  int64_t pitch;
  int64_t number;
  int64_t elements;
  c10::ScalarType type;
  bool use_fp32;
};
bool launch(const SumInOrder& call, CUstream_st* stream);

// Slices [begin, begin + size) of a contiguous tensor, to or from a packed buffer.
struct Permute {
  struct Piece {
    int64_t begin, size, offset;  // offset: in the buffer, in elements
  };
  bool packs;
  void* packed;
  void* tensor;
  int64_t element_size;
  int64_t outer, extent, inner;
  std::vector<Piece> pieces;
};
bool launch(const Permute& call, CUstream_st* stream);

}  // namespace meshrun::cuda
