#include "parallel/kernels/piece_kernels.h"

#include "ATen/core/grad_mode.h"

namespace meshrun {
namespace {

PieceKernels& cuda_kernels() {
  static PieceKernels kernels;
  return kernels;
}

// The slice in the tensor, and the same elements in the buffer.
struct Ends {
  at::Tensor slice;
  at::Tensor packed;
};

Ends ends_of(const at::Tensor& buffer, const at::Tensor& tensor, int64_t dim,
             const PackedPiece& piece) {
  at::Tensor slice = tensor.narrow(dim, piece.begin, piece.size);
  at::Tensor packed = buffer.narrow(0, piece.offset, slice.numel()).view(slice.sizes());
  return {std::move(slice), std::move(packed)};
}

}  // namespace

void pack_pieces(const at::Tensor& buffer, const at::Tensor& tensor, int64_t dim,
                 PackedPieces pieces) {
  const at::NoGradGuard no_grad;
  const PieceKernels& kernels = cuda_kernels();
  if (tensor.is_cuda() && kernels.pack && kernels.pack(buffer, tensor, dim, pieces)) return;
  for (const PackedPiece& piece : pieces) {
    const Ends ends = ends_of(buffer, tensor, dim, piece);
    ends.packed.copy_(ends.slice);
  }
}

void unpack_pieces(const at::Tensor& tensor, int64_t dim, const at::Tensor& buffer,
                   PackedPieces pieces) {
  const at::NoGradGuard no_grad;
  const PieceKernels& kernels = cuda_kernels();
  if (tensor.is_cuda() && kernels.unpack && kernels.unpack(tensor, dim, buffer, pieces)) return;
  for (const PackedPiece& piece : pieces) {
    const Ends ends = ends_of(buffer, tensor, dim, piece);
    ends.slice.copy_(ends.packed);
  }
}

void sum_in_order(const at::Tensor& output, const at::Tensor& parts, bool use_fp32) {
  const at::NoGradGuard no_grad;
  const PieceKernels& kernels = cuda_kernels();
  if (output.is_cuda() && kernels.sum && kernels.sum(output, parts, use_fp32)) return;
  const auto part = [&](int64_t rank) { return parts.select(0, rank).view(output.sizes()); };
  const bool is_half = output.scalar_type() == at::kHalf || output.scalar_type() == at::kBFloat16;
  // Widening is exact, so this is one rounding at the end.
  at::Tensor sum = is_half && use_fp32 ? part(0).to(at::kFloat) : output.copy_(part(0));
  for (int64_t rank = 1; rank < parts.size(0); ++rank) sum.add_(part(rank));
  if (!sum.is_same(output)) output.copy_(sum);
}

bool register_cuda_piece_kernels(const PieceKernels& kernels) {
  cuda_kernels() = kernels;
  return true;
}

}  // namespace meshrun
