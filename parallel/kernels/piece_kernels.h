// What collectives over sends and receives do to tensors before and after: slices along a dimension
// to and from one packed buffer, and the sum of the ranks' contributions.
//
// A slice along any dim but the first is scattered in memory and cannot be sent in one piece. All
// slices of a tensor are moved at once. A buffer is one-dimensional, of the tensor's dtype and
// device, and holds each slice in row-major order.
//
// ATen's operators serve every device. CUDA kernels register at start-up (//parallel/kernels/cuda)
// and serve contiguous tensors. Work is queued on the current stream and never waited for, so a
// CUDA graph can capture it. Threads: any. Errors: ATen's.
#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "c10/util/ArrayRef.h"

namespace meshrun {

// Elements [begin, begin + size) along the dim, and where they start in the buffer, in elements.
struct PackedPiece {
  int64_t begin = 0;
  int64_t size = 0;
  int64_t offset = 0;
};
using PackedPieces = c10::ArrayRef<PackedPiece>;

void pack_pieces(const at::Tensor& buffer, const at::Tensor& tensor, int64_t dim,
                 PackedPieces pieces);
void unpack_pieces(const at::Tensor& tensor, int64_t dim, const at::Tensor& buffer,
                   PackedPieces pieces);

// output = parts[0] + parts[1] + ..., in that order. `parts` is [P, output.numel()], P >= 1, rows
// contiguous; of the output's dtype. float16 and bfloat16 with use_fp32: added in float32, rounded
// once.
void sum_in_order(const at::Tensor& output, const at::Tensor& parts, bool use_fp32);

// For one kind of device. Each returns false, and does nothing, if it cannot do the work.
struct PieceKernels {
  bool (*pack)(const at::Tensor& buffer, const at::Tensor& tensor, int64_t dim,
               PackedPieces pieces) = nullptr;
  bool (*unpack)(const at::Tensor& tensor, int64_t dim, const at::Tensor& buffer,
                 PackedPieces pieces) = nullptr;
  bool (*sum)(const at::Tensor& output, const at::Tensor& parts, bool use_fp32) = nullptr;
};
// Called at start-up by the library that has the kernels. Not thread-safe.
bool register_cuda_piece_kernels(const PieceKernels& kernels);

}  // namespace meshrun
