#include "parallel/kernels/row_kernels.h"

#include <array>

#include "ATen/TensorOperators.h"
#include "ATen/ops/index_select.h"
#include "ATen/ops/zeros.h"

namespace meshrun {
namespace {

// ATen's operators, for devices without kernels of their own. The sum adds slice by slice of the
// longest segment, so that no two threads add to one element.
void gather_rows(const at::Tensor& output, const at::Tensor& input, const at::Tensor& index,
                 int64_t dim) {
  output.copy_(at::index_select(input, dim, index));
}

void segmented_sum(const at::Tensor& output, const at::Tensor& first, const at::Tensor& second,
                   const at::Tensor& offsets, const at::Tensor& positions, int64_t dim,
                   bool use_fp32) {
  const bool is_half = output.scalar_type() == at::kHalf || output.scalar_type() == at::kBFloat16;
  at::Tensor sum =
      at::zeros(output.sizes(),
                output.options().dtype(is_half && use_fp32 ? at::kFloat : output.scalar_type()));
  const at::Tensor begin = offsets.narrow(0, 0, output.size(dim));
  const at::Tensor count = offsets.narrow(0, 1, output.size(dim)) - begin;
  const int64_t longest = count.numel() == 0 ? 0 : count.max().item<int64_t>();
  for (int64_t k = 0; k < longest; ++k) {
    const at::Tensor rows = (count > k).nonzero().squeeze(1);
    const at::Tensor from = positions.index_select(0, begin.index_select(0, rows) + k);
    const at::Tensor in_first = (from < first.size(dim)).nonzero().squeeze(1);
    const at::Tensor in_second = (from >= first.size(dim)).nonzero().squeeze(1);
    // Rows are distinct here, so that the order of index_add_ does not matter.
    sum.index_add_(dim, rows.index_select(0, in_first),
                   first.index_select(dim, from.index_select(0, in_first)).to(sum.scalar_type()));
    sum.index_add_(dim, rows.index_select(0, in_second),
                   second.index_select(dim, from.index_select(0, in_second) - first.size(dim))
                       .to(sum.scalar_type()));
  }
  output.copy_(sum);
}

constexpr RowKernels kAten = {gather_rows, segmented_sum};

std::array<const RowKernels*, c10::COMPILE_TIME_MAX_DEVICE_TYPES>& table() {
  static std::array<const RowKernels*, c10::COMPILE_TIME_MAX_DEVICE_TYPES> kernels{};
  return kernels;
}

}  // namespace

bool register_row_kernels(c10::DeviceType device, const RowKernels* kernels) {
  table()[static_cast<size_t>(device)] = kernels;
  return true;
}

const RowKernels& row_kernels(c10::DeviceType device) {
  const RowKernels* const own = table()[static_cast<size_t>(device)];
  return own != nullptr ? *own : kAten;
}

const RowKernels& aten_row_kernels() { return kAten; }

}  // namespace meshrun
