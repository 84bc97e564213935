// Gathers slices by index, and adds slices by segment, in host memory. Pure, without LibTorch.
//
// A tensor cut along one dimension is (outer, extent, inner): a slice is `outer` rows of `inner`
// elements, and `pitch` elements lie between the starts of two rows.
//
// All functions take a range of output slices, so that several threads may share the work. Every
// run and every division into ranges gives the same bits: one thread adds each output element, in
// the order of its segment (reduce.h defines the rounding).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "parallel/base/dtype.h"
#include "parallel/base/strided_span.h"

namespace meshrun {

struct Slices {
  const std::byte* data = nullptr;
  int64_t count = 0;  // along the dimension
  int64_t pitch = 0;  // elements; count * inner where contiguous
};

struct SliceShape {
  int64_t outer = 1;
  int64_t inner = 1;
  DType dtype = DType::kFloat32;
};

// Slice r of `output` = slice index[r] of `input`, for begin <= r < end. `output_pitch` as
// Slices::pitch. Any dtype.
void gather_slices(std::byte* output, int64_t output_pitch, const Slices& input,
                   std::span<const int64_t> index, const SliceShape& shape, int64_t begin,
                   int64_t end);

// Copies packed bytes [offset, offset + bytes) of what gather_slices() makes of all of `index` to
// the bytes at `to_offset` of `to`.
void gather_bytes(StridedSpan to, int64_t to_offset, int64_t bytes, const Slices& input,
                  std::span<const int64_t> index, const SliceShape& shape, int64_t offset);

// Slice r of `output` (contiguous, offsets.size() - 1 slices) = the sum of the slices
// positions[offsets[r]] up to positions[offsets[r + 1] - 1], in this order, for begin <= r < end;
// zero where there are none. Position p is slice p of `first`, or p - first.count of `second`.
// Dtypes: those that reduce.h adds. `use_fp32`: as Accumulate::kWide.
void segmented_sum(std::byte* output, const Slices& first, const Slices& second,
                   std::span<const int64_t> offsets, std::span<const int64_t> positions,
                   const SliceShape& shape, bool use_fp32, int64_t begin, int64_t end);

}  // namespace meshrun
