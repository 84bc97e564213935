// Puts the kernels behind row_kernels.h and piece_kernels.h, for CUDA tensors, in programs that
// link this file.
#include <optional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/index_select.h"
#include "c10/core/Event.h"
#include "c10/cuda/CUDAException.h"
#include "c10/cuda/CUDAGraphsC10Utils.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "parallel/kernels/cuda/calls.h"
#include "parallel/kernels/piece_kernels.h"
#include "parallel/kernels/row_kernels.h"

namespace meshrun::cuda {
namespace {

// A tensor as (outer, extent, inner) around dim.
struct Extents {
  Extents(const at::Tensor& tensor, int64_t dim) : extent(tensor.size(dim)) {
    for (int64_t d = 0; d < dim; ++d) outer *= tensor.size(d);
    for (int64_t d = dim + 1; d < tensor.dim(); ++d) inner *= tensor.size(d);
  }
  int64_t outer = 1, extent, inner = 1;
};

// Absent: the dims before `dim` have no common stride, or those after it do not lie together.
std::optional<Strided> strided_of(const at::Tensor& tensor, int64_t dim) {
  if (tensor.is_conj() || tensor.is_neg()) return std::nullopt;
  int64_t next = 1;
  for (int64_t d = tensor.dim() - 1; d > dim; --d) {
    if (tensor.size(d) == 1) continue;
    if (tensor.stride(d) != next) return std::nullopt;
    next *= tensor.size(d);
  }
  Strided strided{tensor.data_ptr(), 0, tensor.stride(dim)};
  bool has_stride = false;
  for (int64_t d = dim - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (!has_stride) {
      strided.outer_stride = next = tensor.stride(d);
      has_stride = true;
    } else if (tensor.stride(d) != next) {
      return std::nullopt;
    }
    next *= tensor.size(d);
  }
  return strided;
}

// Strided form of a tensor that is read: the tensor itself, or a copy that `kept` holds until the
// launch is queued.
Strided readable(const at::Tensor& tensor, int64_t dim, at::Tensor& kept) {
  if (const auto strided = strided_of(tensor, dim)) return *strided;
  kept = tensor.resolve_conj().resolve_neg().contiguous();
  return *strided_of(kept, dim);
}

template <typename Call>
bool launched(const Call& call, const at::Tensor& tensor) {
  const c10::cuda::CUDAGuard guard(tensor.device());
  const bool is_queued = launch(call, c10::cuda::getCurrentCUDAStream(tensor.device().index()));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return is_queued;
}

void gather_rows(const at::Tensor& output, const at::Tensor& input, const at::Tensor& index,
                 int64_t dim) {
  if (output.numel() == 0) return;
  const Extents extents(output, dim);
  const std::optional<Strided> written = strided_of(output, dim);
  at::Tensor kept;
  if (written) {
    const GatherRows call{*written,
                          output.scalar_type(),
                          readable(input, dim, kept),
                          input.scalar_type(),
                          index.const_data_ptr<int64_t>(),
                          extents.outer,
                          extents.extent,
                          extents.inner};
    if (launched(call, output)) return;
  }
  // Between integers and the like.
  output.copy_(at::index_select(input, dim, index));
}

void segmented_sum(const at::Tensor& output, const at::Tensor& first, const at::Tensor& second,
                   const at::Tensor& offsets, const at::Tensor& positions, int64_t dim,
                   bool use_fp32) {
  if (output.numel() == 0) return;
  const std::optional<Strided> written = strided_of(output, dim);
  if (!written) {
    const at::Tensor whole = at::empty(output.sizes(), output.options());
    segmented_sum(whole, first, second, offsets, positions, dim, use_fp32);
    output.copy_(whole);
    return;
  }
  const auto is_there = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.numel() > 0;
  };
  const Extents extents(output, dim);
  at::Tensor kept_first, kept_second;
  SegmentedSum call{};
  call.output = *written;
  if (is_there(first)) call.first = readable(first, dim, kept_first);
  if (is_there(second)) call.second = readable(second, dim, kept_second);
  call.first_extent = first.defined() ? first.size(dim) : 0;
  call.offsets = offsets.const_data_ptr<int64_t>();
  call.positions = positions.const_data_ptr<int64_t>();
  call.type = output.scalar_type();
  call.use_fp32 = use_fp32;
  call.outer = extents.outer;
  call.segments = extents.extent;
  call.inner = extents.inner;
  TORCH_CHECK_NOT_IMPLEMENTED(launched(call, output), "there is no sum of slices of ",
                              output.scalar_type(), " on CUDA");
}

bool permute(bool packs, const at::Tensor& buffer, const at::Tensor& tensor, int64_t dim,
             std::vector<Permute::Piece> pieces) {
  if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) return false;
  const Extents extents(tensor, dim);
  return launched(Permute{packs, buffer.data_ptr(), tensor.data_ptr(),
                          static_cast<int64_t>(tensor.element_size()), extents.outer,
                          extents.extent, extents.inner, std::move(pieces)},
                  tensor);
}

std::vector<Permute::Piece> copied(PackedPieces pieces) {
  std::vector<Permute::Piece> result;
  for (const PackedPiece& piece : pieces) result.push_back({piece.begin, piece.size, piece.offset});
  return result;
}

bool pack(const at::Tensor& buffer, const at::Tensor& tensor, int64_t dim, PackedPieces pieces) {
  return permute(true, buffer, tensor, dim, copied(pieces));
}

bool unpack(const at::Tensor& tensor, int64_t dim, const at::Tensor& buffer, PackedPieces pieces) {
  return permute(false, buffer, tensor, dim, copied(pieces));
}

bool sum(const at::Tensor& output, const at::Tensor& parts, bool use_fp32) {
  if (!output.is_contiguous() || output.is_conj() || output.is_neg()) return false;
  return launched(SumInOrder{output.data_ptr(), parts.const_data_ptr(), parts.stride(0),
                             parts.size(0), output.numel(), output.scalar_type(), use_fp32},
                  output);
}

[[maybe_unused]] const bool kPiecesAreRegistered =
    register_cuda_piece_kernels({.pack = pack, .unpack = unpack, .sum = sum});

bool is_capturing(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

bool has_passed(const c10::Event& event) {
  c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  return event.query();
}

constexpr RowKernels kRowKernels = {.gather_rows = gather_rows,
                                    .segmented_sum = segmented_sum,
                                    .is_capturing = is_capturing,
                                    .has_passed = has_passed};
[[maybe_unused]] const bool kRowsAreRegistered =
    register_row_kernels(c10::DeviceType::CUDA, &kRowKernels);

}  // namespace
}  // namespace meshrun::cuda
