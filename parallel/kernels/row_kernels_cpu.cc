// The CPU's row kernels: segmented_sum.h on tensors, shared among ATen's threads.
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "ATen/Parallel.h"
#include "parallel/base/reduce.h"
#include "parallel/base/tensor_layout.h"
#include "parallel/kernels/row_kernels.h"
#include "parallel/kernels/segmented_sum.h"

namespace meshrun {
namespace {

// Bytes that a thread should have to move for its start to be worth it.
constexpr int64_t kGrainBytes = 1 << 18;

int64_t product(at::IntArrayRef extents) {
  return std::accumulate(extents.begin(), extents.end(), int64_t{1}, std::multiplies<>());
}

SliceShape shape_of(const at::Tensor& tensor, int64_t dim, DType dtype) {
  return {product(tensor.sizes().slice(0, dim)), product(tensor.sizes().slice(dim + 1)), dtype};
}

// Whether the tensor is a slice along dim of a contiguous one, and the pitch of its rows then.
bool has_pitch(const at::Tensor& tensor, int64_t dim, int64_t& pitch) {
  if (tensor.is_conj() || tensor.is_neg()) return false;
  int64_t expected = 1;
  for (int64_t d = tensor.dim() - 1; d >= dim; --d) {
    if (tensor.size(d) != 1 && tensor.stride(d) != expected) return false;
    expected *= tensor.size(d);
  }
  pitch = expected;
  bool is_first = true;
  for (int64_t d = dim - 1; d >= 0; --d) {
    if (tensor.size(d) == 1) continue;
    if (is_first) {
      pitch = expected = tensor.stride(d);
      is_first = false;
    } else if (tensor.stride(d) != expected) {
      return false;
    }
    expected *= tensor.size(d);
  }
  return true;
}

// `tensor` itself, or a contiguous copy that `owner` then holds.
Slices slices_of(const at::Tensor& tensor, int64_t dim, at::Tensor& owner) {
  Slices slices{nullptr, tensor.size(dim), 0};
  owner = tensor;
  if (!has_pitch(tensor, dim, slices.pitch)) {
    owner = tensor.resolve_conj().resolve_neg().contiguous();
    has_pitch(owner, dim, slices.pitch);
  }
  slices.data = static_cast<const std::byte*>(owner.const_data_ptr());
  return slices;
}

std::span<const int64_t> span_of_longs(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), static_cast<size_t>(tensor.numel())};
}

int64_t grain(const at::Tensor& tensor, int64_t dim) {
  const int64_t slice = std::max<int64_t>(
      1, static_cast<int64_t>(tensor.nbytes()) / std::max<int64_t>(1, tensor.size(dim)));
  return std::max<int64_t>(1, kGrainBytes / slice);
}

void gather_rows(const at::Tensor& output, const at::Tensor& input, const at::Tensor& index,
                 int64_t dim) {
  if (output.numel() == 0) return;
  int64_t pitch = 0;
  const auto dtype = dtype_of(input.scalar_type());
  if (input.scalar_type() != output.scalar_type() || !dtype || !has_pitch(output, dim, pitch)) {
    return aten_row_kernels().gather_rows(output, input, index, dim);
  }
  at::Tensor owner;
  const Slices from = slices_of(input, dim, owner);
  const SliceShape shape = shape_of(output, dim, *dtype);
  auto* const to = static_cast<std::byte*>(output.data_ptr());
  const auto longs = span_of_longs(index);
  at::parallel_for(0, output.size(dim), grain(output, dim), [&](int64_t begin, int64_t end) {
    gather_slices(to, pitch, from, longs, shape, begin, end);
  });
}

void sum_segments(const at::Tensor& output, const at::Tensor& first, const at::Tensor& second,
                  const at::Tensor& offsets, const at::Tensor& positions, int64_t dim,
                  bool use_fp32) {
  if (output.numel() == 0) return;
  const auto dtype = dtype_of(output.scalar_type());
  TORCH_CHECK_NOT_IMPLEMENTED(dtype && reduction_problem(ReductionOp::kSum, *dtype).empty(),
                              "slices of ", output.dtype(), " cannot be added");
  at::Tensor first_owner, second_owner;
  const Slices in_first = slices_of(first, dim, first_owner);
  const Slices in_second = slices_of(second, dim, second_owner);
  const SliceShape shape = shape_of(output, dim, *dtype);
  auto* const to = static_cast<std::byte*>(output.data_ptr());
  at::parallel_for(0, output.size(dim), grain(output, dim), [&](int64_t begin, int64_t end) {
    segmented_sum(to, in_first, in_second, span_of_longs(offsets), span_of_longs(positions), shape,
                  use_fp32, begin, end);
  });
}

RowKernels::Filler filler(const at::Tensor& input, const at::Tensor& index, int64_t dim) {
  const auto dtype = dtype_of(input.scalar_type());
  int64_t pitch = 0;
  if (!dtype || !has_pitch(input, dim, pitch)) return nullptr;
  const SliceShape shape = shape_of(input, dim, *dtype);
  const Slices from{static_cast<const std::byte*>(input.const_data_ptr()), input.size(dim), pitch};
  return [input, from, shape, longs = span_of_longs(index)](int64_t begin, int64_t count,
                                                            int64_t offset, StridedSpan to,
                                                            int64_t to_offset, int64_t bytes) {
    const auto of_piece = longs.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    gather_bytes(to, to_offset, bytes, from, of_piece, shape, offset);
  };
}

constexpr RowKernels kKernels = {gather_rows, sum_segments, filler};
const bool kRegistered = register_row_kernels(c10::DeviceType::CPU, &kKernels);

}  // namespace
}  // namespace meshrun
